// Text within HTML and SVG.
#pragma once

#include <string>
#include <string_view>

namespace copus {

// With entities for the characters that mean something to HTML: & < > " '.
std::string escape_html(std::string_view text);

}  // namespace copus
