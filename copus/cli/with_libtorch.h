// How the program `copus`, which is without libtorch, does what needs it: it becomes the program copus-torch, which a
// build with libtorch puts beside it. So libtorch, whose loading takes a hundred times as long as the rest of a start,
// is loaded by those who train.
#pragma once

#include <filesystem>
#include <optional>
#include <string>

namespace copus {

// Thrown by a command that needs libtorch, in the program without it.
struct NeedsLibtorch {
  std::string command;  // its words: "copus bench step"
};

// Returns the path of copus-torch, or nothing if it does not lie beside this program.
std::optional<std::filesystem::path> program_with_libtorch();

// Becomes copus-torch, with the same arguments, variables and descriptors. Throws UserError where that cannot be.
[[noreturn]] void become_program_with_libtorch(char* const* arguments, const NeedsLibtorch& needs);

}  // namespace copus
