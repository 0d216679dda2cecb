// Names the format of a file that is not text, so that the user learns how to train on it.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace copus {

// Says what a file is and how to convert it into what Copus reads: "is a NumPy array; tools/tokens_to_pair.py makes a
// tokenized pair of token ids". It looks at the first bytes, and at the name if a format has no mark of its own. Empty
// for text and for unknown formats.
std::optional<std::string> format_of_corpus(std::string_view file, const std::string& path);

}  // namespace copus
