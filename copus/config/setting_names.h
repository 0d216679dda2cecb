// Finds the setting that a user meant by a name without its section or by an option. For messages.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace copus {

// Returns the settings, as "section.key", that have this key or that other programs call by this name: "lr",
// "--batch-size". A key that several sections have gives all of these settings. Empty if there is none.
std::vector<std::string> settings_called(std::string_view name);

// Returns settings_called(name) or, if that is empty, the settings of the most similar key.
std::vector<std::string> settings_like(std::string_view name);

}  // namespace copus
