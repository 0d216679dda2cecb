// What people mean by the name of a setting that they write without its section, or as an option: for messages.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace copus {

// Returns the settings, as "section.key", whose key this is, or which other programs call so: "lr", "--batch-size". A
// name in several sections means all of them; empty where there is none.
std::vector<std::string> settings_called(std::string_view name);

// Returns these, or where there are none, those of the key that is nearest.
std::vector<std::string> settings_like(std::string_view name);

}  // namespace copus
