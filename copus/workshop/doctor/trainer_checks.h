// Checks of libtorch and its devices, for the program with libtorch.
#pragma once

#include <functional>

#include "copus/workshop/doctor/finding.h"

namespace copus {

// Calls `found` for each finding at once, because a driver may hang or end the process in the next check.
void check_trainer(const std::function<void(const Finding&)>& found);

}  // namespace copus
