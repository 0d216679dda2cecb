// The commands of this room that a build with COPUS_WITH_TORCH=OFF does not have: known by name.
#include "copus/workshop/commands.h"

namespace copus {

void add_step_bench(CLI::App& bench, Action& action) { add_missing(bench, action, "copus bench", "step"); }
void add_probe_bench(CLI::App& bench, Action& action) { add_missing(bench, action, "copus bench", "gns"); }
void add_relayout_bench(CLI::App& bench, Action& action) { add_missing(bench, action, "copus bench", "relayout"); }

void add_profile(CLI::App& program, Action& action) { add_missing(program, action, "copus", "profile"); }
void add_selftest(CLI::App& program, Action& action, const std::vector<std::string>& /*arguments*/) {
  add_missing(program, action, "copus", "selftest");
}

}  // namespace copus
