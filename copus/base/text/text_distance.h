// Texts for messages about names: lists of names, and what a misspelled name probably meant.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace copus {

// Counts the insertions, deletions, substitutions and swaps of neighbours, in bytes, that turn one text into the other
// (optimal string alignment distance).
size_t edit_distance(std::string_view one, std::string_view other);

// Returns the candidate nearest to `text` (the first of equals), if it is likely that `text` misspells it: at most one
// edit per three characters, ignoring case. Otherwise returns the first candidate that `text` abbreviates word by word:
// "--seq-len" means "--sequence-length".
std::optional<std::string> nearest(std::string_view text, const std::vector<std::string>& candidates);

// Joins texts with the separator: join({"a", "b"}, ", ") is "a, b".
std::string join(const std::vector<std::string>& texts, std::string_view separator);

// Returns a suggestion for an unknown name: `did you mean "lr"?` if a candidate is near enough. Otherwise lists the
// candidates after `introduction`: "its keys are lr, seed".
std::string suggest(std::string_view text, const std::vector<std::string>& candidates, std::string_view introduction);

}  // namespace copus
