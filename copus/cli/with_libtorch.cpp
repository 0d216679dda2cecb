#include "copus/cli/with_libtorch.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <fstream>
#include <system_error>
#include <vector>

#include "copus/base/error.h"

namespace copus {

std::string version_of_pytorch(const std::filesystem::path& package) {
  std::ifstream file(package / "version.py");
  for (std::string line; std::getline(file, line);) {
    const size_t begin = line.find('\'');
    if (line.starts_with("__version__ = ") && begin != std::string::npos) {
      return line.substr(begin + 1, line.rfind('\'') - begin - 1);
    }
  }
  return "";
}

namespace {

constexpr const char* name_with_libtorch = "copus-torch";

// The paths of copus-torch in the wheels that are installed next to this bin/, one for each version of Python.
std::vector<std::filesystem::path> programs_of_wheels(const std::filesystem::path& bin) {
  std::vector<std::filesystem::path> programs;
  for (const char* const libraries : {"lib", "lib64"}) {
    std::error_code error;
    for (const auto& python : std::filesystem::directory_iterator(bin.parent_path() / libraries, error)) {
      if (!python.path().filename().string().starts_with("python3")) continue;
      for (const char* const packages : {"site-packages", "dist-packages"}) {
        const std::filesystem::path program = python.path() / packages / "copus/bin" / name_with_libtorch;
        if (std::filesystem::exists(program, error)) programs.push_back(program);
      }
    }
  }
  return programs;
}

}  // namespace

std::optional<std::filesystem::path> program_with_libtorch() {
  std::error_code error;
  const std::filesystem::path bin = std::filesystem::read_symlink("/proc/self/exe", error).parent_path();
  if (error) return std::nullopt;
  if (std::filesystem::exists(bin / name_with_libtorch, error)) return bin / name_with_libtorch;
  const std::vector<std::filesystem::path> programs = programs_of_wheels(bin);
  if (programs.empty()) return std::nullopt;
  const auto fits = [](const std::filesystem::path& program) { return !pytorch_mismatch(program); };
  const auto first = std::find_if(programs.begin(), programs.end(), fits);
  return first == programs.end() ? programs.front() : *first;
}

std::optional<PytorchMismatch> pytorch_mismatch(const std::filesystem::path& program) {
  // python/CMakeLists.txt writes this file, and makes copus-torch look for libtorch in the same two places as here.
  std::ifstream built_with(program.parent_path() / "pytorch.txt");
  std::string version, folder;
  if (!std::getline(built_with, version) || !std::getline(built_with, folder)) return std::nullopt;
  const std::filesystem::path packages = program.parent_path().parent_path().parent_path();
  std::string found = concat(packages.string(), " has none");
  for (const std::filesystem::path& package : {packages / "torch", std::filesystem::path(folder)}) {
    const std::string there = version_of_pytorch(package);
    if (there == version) return std::nullopt;
    if (there.empty()) continue;
    found = concat(package.string(), " is ", there);
    break;
  }
  return PytorchMismatch{concat("PyTorch ", version, ", with which it was built, and ", found),
                         concat("install PyTorch ", version, ", or ", how_to_build_with_libtorch)};
}

void become_program_with_libtorch(char* const* arguments, const NeedsLibtorch& needs) {
  const std::optional<std::filesystem::path> program = program_with_libtorch();
  if (!program) {
    throw UserError(
        concat("'", needs.command, "' needs libtorch, and this program has none; ", how_to_build_with_libtorch));
  }
  if (const auto mismatch = pytorch_mismatch(*program)) {
    throw UserError(concat("'", needs.command, "' needs ", mismatch->text, "; ", mismatch->remedy));
  }
  ::execv(program->c_str(), arguments);
  throw UserError(concat("'", needs.command, "' needs the program ", program->string(),
                         ", which cannot be started: ", std::generic_category().message(errno)));
}

}  // namespace copus
