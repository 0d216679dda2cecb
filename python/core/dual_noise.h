// Offers the noise scales in dual norms (statistics/dual_noise.h) and the polynomials of Newton-Schulz to Python.
#pragma once

#include <nanobind/nanobind.h>

namespace copus {

void add_dual_noise(nanobind::module_& module);

}  // namespace copus
