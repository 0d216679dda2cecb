// Answers for the commands that a build with COPUS_WITH_TORCH=OFF does not have.
#include "copus/base/error.h"
#include "copus/cli/commands.h"

namespace copus {

void add_missing(CLI::App& parent, CommandAction& action, const std::string& program, const std::string& name) {
  CLI::App& command = *parent.add_subcommand(name, "(not in this build, which has no libtorch)");
  command.allow_extras();
  command.callback([&action, full_name = program + " " + name] {
    action = [full_name]() -> int {
      throw UserError(concat("'", full_name,
                             "' needs libtorch, and this build has none; configure it with "
                             "-DCOPUS_WITH_TORCH=ON"));
    };
  });
}

void add_train(CLI::App& program, CommandAction& action, const std::vector<std::string>& /*arguments*/,
               const PageWriter& /*write_page*/) {
  add_missing(program, action, "copus", "train");
}
void add_generate(CLI::App& program, CommandAction& action) { add_missing(program, action, "copus", "generate"); }

void add_gns(CLI::App& program, CommandAction& action) { add_missing(program, action, "copus", "gns"); }

void add_calibrate(CLI::App& program, CommandAction& action) { add_missing(program, action, "copus", "calibrate"); }

}  // namespace copus
