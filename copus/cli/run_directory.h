// Checks the run directory that a command was given, and makes the message if there is no run in it.
#pragma once

#include <filesystem>
#include <string>

namespace copus {

// Returns a hint if the folder contains runs, as runs/ does. The words continue a sentence: ", which is a folder of 2:
// give one of them, such as runs/b". Empty if none of its subfolders has `needed_file`.
std::string hint_at_runs_in(const std::filesystem::path& folder, const std::string& needed_file);

// Returns the message that there is no run in the directory: "there is no run in r (...)". If the directory contains
// runs, suggests one of them. `needed_file` is a file that a run would have.
std::string why_no_run(const std::filesystem::path& directory, const std::string& needed_file);

// Throws UserError, which refers to the command's help, if the directory has no `needed_file`.
void check_is_run(const std::string& command, const std::filesystem::path& directory,
                  const std::string& needed_file = "config.toml");

}  // namespace copus
