// Checks the run directory that a command was given. Makes the error message if it contains no run.
#pragma once

#include <filesystem>
#include <string>

namespace copus {

// Returns a hint if the folder contains runs, as runs/ does. The words continue a sentence: ", which is a folder of 2:
// give one of them, such as runs/b". Empty if none of its subfolders has `needed_file`.
std::string hint_at_runs_in(const std::filesystem::path& folder, const std::string& needed_file);

// Returns the message that the directory holds no run: "there is no run in r (...)". If the directory contains runs,
// the message suggests one of them. `needed_file` is a file that every run has.
std::string why_no_run(const std::filesystem::path& directory, const std::string& needed_file);

// Throws UserError if the directory has no `needed_file`. The message refers to the help of `command`.
void check_is_run(const std::string& command, const std::filesystem::path& directory,
                  const std::string& needed_file = "config.toml");

}  // namespace copus
