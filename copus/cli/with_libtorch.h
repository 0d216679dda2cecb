// Runs commands that need libtorch. The program `copus` does not contain libtorch, because loading libtorch takes a
// hundred times as long as everything else at the start. For these commands, `copus` replaces its process by the
// program copus-torch, which a build with libtorch places next to it.
#pragma once

#include <filesystem>
#include <optional>
#include <string>

namespace copus {

// Thrown by a command that needs libtorch, in the program without it.
struct NeedsLibtorch {
  std::string command;  // the command as typed: "copus bench step"
};

// Returns the version ("2.13.0+cu130") of the Python package `torch` in the folder `package`. Empty if there is no
// such package, as with a libtorch without Python.
std::string version_of_pytorch(const std::filesystem::path& package);

// Returns the path of copus-torch, or nothing if there is none. It is next to this program or, if a Python wheel
// installed this program into bin/, in the Python package `copus`.
std::optional<std::filesystem::path> program_with_libtorch();

// How to get a copus-torch, for the end of a message.
inline constexpr const char* how_to_build_with_libtorch =
    "build Copus with libtorch: make build, or COPUS_WITH_TORCH=1 pip install . in the environment of your PyTorch";

struct PytorchMismatch {
  std::string text;  // to follow "needs": "PyTorch 2.13.0+cpu, with which it was built, and ..."
  std::string remedy;
};

// Returns an error message if copus-torch cannot run in this Python environment; nothing if it can, or if `program`,
// the path of copus-torch, is not from a wheel. The copus-torch of a wheel loads the libtorch of the environment's
// PyTorch, whose binary interface changes with each version. The environment may have a different PyTorch, or none.
std::optional<PytorchMismatch> pytorch_mismatch(const std::filesystem::path& program);

// Replaces this process by copus-torch, with the same arguments, environment and descriptors. Throws UserError if that
// fails.
[[noreturn]] void become_program_with_libtorch(char* const* arguments, const NeedsLibtorch& needs);

}  // namespace copus
