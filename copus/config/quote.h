// Values as TOML writes them.
#pragma once

#include <string>
#include <string_view>

namespace copus {

// A TOML basic string: "C:\\text" for C:\text.
std::string quote(std::string_view text);

// The shortest TOML float that reads back as `number`: 0.001, 1e-08, 3.0.
std::string write_number(double number);

}  // namespace copus
