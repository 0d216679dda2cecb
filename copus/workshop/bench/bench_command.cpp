#include "copus/workshop/commands.h"

namespace copus {

void add_bench(CLI::App& program, Action& action, RankJobs& jobs) {
  CLI::App& bench = add_bench_group(program);
  add_step_bench(bench, action);
  add_probe_bench(bench, action, jobs);
  add_relayout_bench(bench, action, jobs);
  add_benches_without_libtorch(bench, action, jobs);
}

}  // namespace copus
