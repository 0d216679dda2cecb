// Names the format of a file that is not text, so that the user learns how to train on it.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace copus {

// Returns the kind of a file and how to convert it into a format that Copus reads: "is a NumPy array;
// tools/tokens_to_pair.py makes a tokenized pair of token ids". It examines the first bytes, and the name if a format
// has no mark of its own. Empty for text and for unknown formats.
std::optional<std::string> format_of_corpus(std::string_view file, const std::string& path);

}  // namespace copus
