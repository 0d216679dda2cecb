#include "copus/workshop/commands.h"

namespace copus {

void add_bench(CLI::App& program, Action& action) {
  CLI::App& bench = *program.add_subcommand("bench", "Measure this machine");
  bench.require_subcommand(1);
  add_step_bench(bench, action);
  add_probe_bench(bench, action);
  add_comm_bench(bench, action);
  add_model_bench(bench, action);
  add_decide_bench(bench, action);
  add_relayout_bench(bench, action);
}

}  // namespace copus
