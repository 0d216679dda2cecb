// What short branches of a run tell (statistics/branch_calibration.h), for Python.
#pragma once

#include <nanobind/nanobind.h>

namespace copus {

void add_branches(nanobind::module_& module);

}  // namespace copus
