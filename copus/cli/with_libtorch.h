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

// Returns the version of the Python package `torch` in that folder ("2.13.0+cu130"); empty where there is none, as
// beside a libtorch without Python.
std::string version_of_pytorch(const std::filesystem::path& package);

// Returns the path of copus-torch: beside this program, or, if a Python wheel has installed this program into bin/, in
// the package `copus`. Nothing if there is none.
std::optional<std::filesystem::path> program_with_libtorch();

// How to get a copus-torch, to end a message with.
inline constexpr const char* how_to_build_with_libtorch =
    "build Copus with libtorch: make build, or COPUS_WITH_TORCH=1 pip install . in the environment of your PyTorch";

struct PytorchMismatch {
  std::string text;  // to follow "needs": "PyTorch 2.13.0+cpu, with which it was built, and ..."
  std::string remedy;
};

// A Python wheel has a copus-torch and no libtorch: it loads that of the environment's PyTorch, and libtorch's binary
// interface changes with each version. Returns what is wrong if the environment has another PyTorch or none; nothing if
// it has the right one, or if `program`, the path of copus-torch, is not from a wheel.
std::optional<PytorchMismatch> pytorch_mismatch(const std::filesystem::path& program);

// Becomes copus-torch, with the same arguments, variables and descriptors. Throws UserError where that cannot be.
[[noreturn]] void become_program_with_libtorch(char* const* arguments, const NeedsLibtorch& needs);

}  // namespace copus
