// The commands that a build with COPUS_WITH_TORCH=OFF does not have: known by name, so that the answer is helpful.
#include "copus/base/error.h"
#include "copus/cli/commands.h"

namespace copus {

namespace {

void add_missing(CLI::App& program, Action& action, const std::string& name) {
  CLI::App& command = *program.add_subcommand(name, "(not in this build, which has no libtorch)");
  command.allow_extras();
  command.callback([&action, name] {
    action = [name]() -> int {
      throw UserError(concat("'copus ", name,
                             "' needs libtorch, and this build has none; configure it with "
                             "-DCOPUS_WITH_TORCH=ON"));
    };
  });
}

}  // namespace

void add_train(CLI::App& program, Action& action, const std::vector<std::string>& /*arguments*/) {
  add_missing(program, action, "train");
}
void add_generate(CLI::App& program, Action& action) { add_missing(program, action, "generate"); }
void add_bench(CLI::App& program, Action& action) { add_missing(program, action, "bench"); }

}  // namespace copus
