#include "copus/cli/with_libtorch.h"

#include <unistd.h>

#include <cerrno>
#include <system_error>

#include "copus/base/error.h"

namespace copus {

std::optional<std::filesystem::path> program_with_libtorch() {
  std::error_code error;
  const std::filesystem::path program = std::filesystem::read_symlink("/proc/self/exe", error);
  const std::filesystem::path path = program.parent_path() / "copus-torch";
  return !error && std::filesystem::exists(path, error) ? std::optional(path) : std::nullopt;
}

void become_program_with_libtorch(char* const* arguments, const NeedsLibtorch& needs) {
  const std::optional<std::filesystem::path> program = program_with_libtorch();
  if (!program) {
    throw UserError(concat("'", needs.command, "' needs libtorch, and this build has none; configure it with ",
                           "-DCOPUS_WITH_TORCH=ON, or put that build's copus-torch beside this program"));
  }
  ::execv(program->c_str(), arguments);
  throw UserError(concat("'", needs.command, "' needs the program ", program->string(),
                         ", which cannot be started: ", std::generic_category().message(errno)));
}

}  // namespace copus
