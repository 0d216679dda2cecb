// The commands of this room in a build with COPUS_WITH_TORCH=OFF: those that need libtorch are known by name.
#include "copus/workshop/commands.h"

namespace copus {

void add_profile(CLI::App& program, Action& action, RankJobs& /*jobs*/) {
  add_missing(program, action, "copus", "profile");
}
void add_selftest(CLI::App& program, Action& action, RankJobs& /*jobs*/) {
  add_missing(program, action, "copus", "selftest");
}

void add_bench(CLI::App& program, Action& action, RankJobs& jobs) {
  CLI::App& bench = add_bench_group(program);
  for (const char* const name : {"step", "gns", "relayout"}) add_missing(bench, action, "copus bench", name);
  add_benches_without_libtorch(bench, action, jobs);
}

}  // namespace copus
