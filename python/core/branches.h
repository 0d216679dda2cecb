// Offers the fits of short branches of a run (statistics/branch_calibration.h) to Python.
#pragma once

#include <nanobind/nanobind.h>

namespace copus {

void add_branches(nanobind::module_& module);

}  // namespace copus
