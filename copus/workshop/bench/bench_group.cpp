#include "copus/workshop/commands.h"

namespace copus {

CLI::App& add_bench_group(CLI::App& program) {
  CLI::App& bench = *program.add_subcommand("bench", "Measure this machine");
  bench.require_subcommand(1);
  return bench;
}

void add_benches_without_libtorch(CLI::App& bench, Action& action, RankJobs& jobs) {
  add_comm_bench(bench, action, jobs);
  add_model_bench(bench, action);
  add_decide_bench(bench, action);
}

}  // namespace copus
