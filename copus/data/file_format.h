// Names the format of a file that is no text, so that its user learns how to train on it.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace copus {

// Says what a file is and how to turn it into what Copus reads, by its first bytes and, where formats have no mark of
// their own, by its name: "is a NumPy array; tools/tokens_to_pair.py makes a tokenized pair of token ids". Empty for
// text and for what is unknown.
std::optional<std::string> format_of_corpus(std::string_view file, const std::string& path);

}  // namespace copus
