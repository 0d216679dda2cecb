// Path patterns as in a shell: "data/web-*.bin".
#pragma once

#include <string>
#include <vector>

namespace copus {

// Returns whether a path is a pattern. `*` stands for any characters within a name, `?` for one character, and `[a-c]`
// for one of the listed characters.
bool is_path_pattern(const std::string& path);

// Lists the paths that match a pattern, sorted by name. Throws UserError if a folder cannot be read.
std::vector<std::string> matching_paths(const std::string& pattern);

}  // namespace copus
