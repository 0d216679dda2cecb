// Declares the commands that need libtorch to the program without it, which runs them as copus-torch.
#include "copus/cli/commands.h"
#include "copus/cli/with_libtorch.h"
#include "copus/comm/job/start/launcher.h"
#include "copus/train/job/job.h"

namespace copus {

void add_with_libtorch(CLI::App& parent, CommandAction& action, const std::string& program, const std::string& name,
                       const char* about) {
  const NeedsLibtorch needs{program + " " + name};
  if (program_with_libtorch()) {
    // Starts copus-torch before the options are parsed, because only copus-torch knows them.
    parent.add_subcommand(name, about)->preparse_callback([needs](size_t) { throw NeedsLibtorch(needs); });
    return;
  }
  CLI::App& command = *parent.add_subcommand(name, "(not in this build, which has no libtorch)");
  command.allow_extras();
  command.footer("");  // the parent's examples are for other commands
  command.callback([&action, needs] { action = [needs]() -> int { throw NeedsLibtorch(needs); }; });
}

void add_generate(CLI::App& program, CommandAction& action) {
  add_with_libtorch(program, action, "copus", "generate", about_generate);
}

void add_gns(CLI::App& program, CommandAction& action) {
  add_with_libtorch(program, action, "copus", "gns", about_gns);
}

void add_calibrate(CLI::App& program, CommandAction& action) {
  add_with_libtorch(program, action, "copus", "calibrate", about_calibrate);
}

// The part of `copus train` that needs no libtorch: it reports the user's mistakes without waiting for libtorch to
// load. Ranks that another launcher started continue in copus-torch at once, because the ranks of a job report mistakes
// together.
int run_job(const RunRequest& request, double /*max_seconds*/, const std::vector<std::string>& /*arguments*/) {
  if (program_with_libtorch() && !read_rank_environment()) plan_run(request);
  throw NeedsLibtorch{"copus train"};
}

}  // namespace copus
