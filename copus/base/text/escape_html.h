// Escapes text for HTML and SVG.
#pragma once

#include <string>
#include <string_view>

namespace copus {

// Replaces the characters that are special in HTML (& < > " ') with entities.
std::string escape_html(std::string_view text);

}  // namespace copus
