// The directory of a run that a command was given, and what to say of one in which there is none.
#pragma once

#include <filesystem>
#include <string>

namespace copus {

// Says of a folder of runs, such as `copus train` leaves in runs/, that it is one, to go on a sentence with: ", which
// is a folder of 2: give one of them, such as runs/b". Empty where no folder in it has this file.
std::string if_folder_of_runs(const std::filesystem::path& folder, const std::string& needed_file);

// Says why there is no run in the directory, as "there is no run in r (...)"; names the runs in it where it is a folder
// of them. `needed_file` is what the run would have there.
std::string why_no_run(const std::filesystem::path& directory, const std::string& needed_file);

// Throws UserError, which points to the help of the command, where the directory has no such file.
void check_is_run(const std::string& command, const std::filesystem::path& directory,
                  const std::string& needed_file = "config.toml");

}  // namespace copus
