// For messages: finds the setting that a user meant by a name without a section, or by an option.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace copus {

// Returns, as "section.key", all settings that have this key, or for which other programs use this name: "lr",
// "--batch-size". Empty if there are none.
std::vector<std::string> settings_called(std::string_view name);

// Returns settings_called(name) or, if that is empty, the settings of the most similar key.
std::vector<std::string> settings_like(std::string_view name);

}  // namespace copus
