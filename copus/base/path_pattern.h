// Patterns of paths, as a shell has them: "data/web-*.bin".
#pragma once

#include <string>
#include <vector>

namespace copus {

// Tells whether a path is a pattern: `*` stands for any characters of a name, `?` for one, and `[a-c]` for one of those
// listed.
bool is_path_pattern(const std::string& path);

// Lists what a pattern matches, sorted by name. Throws UserError where a folder cannot be read.
std::vector<std::string> matching_paths(const std::string& pattern);

}  // namespace copus
