// Names the format of a file that is not text, so that the user learns how to train on it.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace copus {

// Describes a file's format and how to convert it for Copus: "is a NumPy array; tools/tokens_to_pair.py makes a
// tokenized pair of token ids". Looks at the first bytes and, for formats without a signature, at the name. Empty for
// text and for unknown formats.
std::optional<std::string> format_of_corpus(std::string_view file, const std::string& path);

}  // namespace copus
