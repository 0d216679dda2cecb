// The commands of this room in a build with COPUS_WITH_TORCH=OFF: those that need libtorch are known by name.
#include "copus/workshop/commands.h"

namespace copus {

void add_profile(CLI::App& program, CommandAction& action, RankJobs& /*jobs*/) {
  add_missing(program, action, "copus", "profile");
}
void add_selftest(CLI::App& program, CommandAction& action, RankJobs& /*jobs*/) {
  add_missing(program, action, "copus", "selftest");
}
void add_step_bench(CLI::App& bench, CommandAction& action) { add_missing(bench, action, "copus bench", "step"); }
void add_probe_bench(CLI::App& bench, CommandAction& action, RankJobs& /*jobs*/) {
  add_missing(bench, action, "copus bench", "gns");
}
void add_relayout_bench(CLI::App& bench, CommandAction& action, RankJobs& /*jobs*/) {
  add_missing(bench, action, "copus bench", "relayout");
}

}  // namespace copus
