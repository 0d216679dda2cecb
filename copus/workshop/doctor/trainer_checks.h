// Checks of libtorch and of the devices that it computes on, for the program with libtorch.
#pragma once

#include <functional>

#include "copus/workshop/doctor/finding.h"

namespace copus {

// Gives each finding as soon as there is one, since a driver may hang or end the process in the next check.
void check_trainer(const std::function<void(const Finding&)>& found);

}  // namespace copus
