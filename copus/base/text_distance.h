// Names in messages: as a list, and the one that a misspelling probably meant.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace copus {

// The number of insertions, deletions, substitutions and swaps of neighbours that turn one text into the other
// (optimal string alignment distance), in bytes.
size_t edit_distance(std::string_view one, std::string_view other);

// The candidate nearest to `text` (the first of equals), if it is near enough to be what a misspelling meant: at most
// one edit per three characters.
std::optional<std::string> nearest(std::string_view text, const std::vector<std::string>& candidates);

// Puts the separator between texts: join({"a", "b"}, ", ") is "a, b".
std::string join(const std::vector<std::string>& texts, std::string_view separator);

// Says what a name that there is not may have meant: `did you mean "lr"?` where one of the candidates is near enough.
// Otherwise it lists all of them behind `introduction`: "its keys are lr, seed".
std::string suggest(std::string_view text, const std::vector<std::string>& candidates, std::string_view introduction);

}  // namespace copus
