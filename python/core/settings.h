// The settings of an adviser as a Python dictionary.
#pragma once

#include <nanobind/nanobind.h>

#include "copus/adviser/adviser_settings.h"

namespace copus {

// Throws UserError that names a key that is missing, unknown or of the wrong type.
AdviserSettings adviser_settings_of(const nanobind::dict& settings);

}  // namespace copus
