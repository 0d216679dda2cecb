// `copus bench decide`: measures the cost of predictions and decisions on one core. The cases are the table of a small
// and of a large cluster, one decision among all configurations of a table, and the controller's time in each step of a
// run.
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "copus/base/error.h"
#include "copus/base/numbers/quantile.h"
#include "copus/base/process/monotonic_seconds.h"
#include "copus/base/text/json_text.h"
#include "copus/base/text/units.h"
#include "copus/cli/option_checks.h"
#include "copus/config/descriptions.h"
#include "copus/orchestrator/predictions/candidates.h"
#include "copus/orchestrator/testing/synthetic_job.h"
#include "copus/performance/measured/table.h"
#include "copus/workshop/commands.h"
#include "copus/workshop/table.h"

namespace copus {
namespace {

struct DecideCommandOptions {
  int64_t rounds = 7;
  bool json = false;
};

constexpr int64_t decisions_per_round = 20;
constexpr int64_t steps_per_round = 300;

// The inputs of a table.
struct Job {
  std::string model_name;
  int64_t sequence_length;
  int64_t world_size;
  int64_t smallest_batch;
  int64_t largest_batch;  // the batches are the powers of two up to this one
};

const Job small_job = {"qwen2.5-32b", 4096, 32, 16, 1024};
const Job large_job = {"llama-3.1-405b", 8192, 16384, 1024, 8192};
constexpr const char* cluster_name = "h100-sxm";

struct MeasuredTable {
  PerformanceTable table;
  Quartiles seconds = {};

  size_t num_configurations() const { return table.cells.size() + static_cast<size_t>(table.too_large); }
};

MeasuredTable measure_table(const Job& job, int64_t rounds) {
  const ModelDescription model = find_model(job.model_name);
  ClusterDescription cluster = find_cluster(cluster_name);
  cluster.num_ranks = job.world_size;
  SearchSpace space;
  space.world_size = job.world_size;
  space.max_tensor_parallel = cluster.ranks_per_node;
  for (int64_t batch = job.smallest_batch; batch <= job.largest_batch; batch *= 2) {
    space.global_batches.push_back(batch);
  }

  MeasuredTable measured;
  std::vector<double> seconds;
  for (int64_t round = 0; round < rounds; ++round) {
    measured.table = {};
    const double start = monotonic_seconds();
    measured.table = make_table(model, job.sequence_length, cluster, copus_in_bf16(), space, Knowledge());
    seconds.push_back(monotonic_seconds() - start);
  }
  measured.seconds = quartiles(seconds);
  COPUS_CHECK(!measured.table.cells.empty(), job.model_name);
  return measured;
}

// A run on all ranks of the job that may choose any configuration of the job's table.
RunConfig adapting_run_of(const Job& job) {
  RunConfig config;
  config.model = find_model(job.model_name);
  config.cluster.description = find_cluster(cluster_name);
  config.cluster.description.num_ranks = job.world_size;
  config.cluster.clock = ClockKind::wall;
  config.train.sequence_length = job.sequence_length;
  config.train.global_batch = job.smallest_batch;
  config.train.micro_batch = 1;
  config.execution.precision = Precision::bf16;
  config.train.max_tokens = int64_t{1} << 40;
  config.parallel.tensor_parallel = config.cluster.description.ranks_per_node;
  config.parallel.pipeline_parallel = job.world_size / config.parallel.tensor_parallel;
  AdaptConfig& adapt = config.adapt;
  adapt.policy = PolicyKind::copus;
  const SearchSpace everything;
  for (int64_t batch = job.smallest_batch; batch <= job.largest_batch; batch *= 2) {
    adapt.global_batches.push_back(batch);
  }
  adapt.schedules = everything.schedules;
  adapt.virtual_stages = {1, 2, 4, 8};
  adapt.recomputes = everything.recomputes;
  adapt.sequence_parallel = everything.sequence_parallel;
  adapt.zero_stages = everything.zero_stages;
  return config;
}

size_t count_candidates(const RunConfig& config) {
  const PerformanceTable table = make_table(config.model, config.train.sequence_length, config.cluster.as_timed(),
                                            training_system_of(config), search_space_of(config), Knowledge());
  return candidates_of(table, {.configuration = configuration_of(config), .step_seconds = 1}, config).size();
}

// Returns the seconds of one complete decision: candidates corrected by the latest measurements, ranking by Goodput,
// and the hash of the inputs. The run never switches here, so a decision is due after every step.
Quartiles measure_decision(RunConfig config, int64_t rounds) {
  config.adapt.advise = true;
  config.adapt.interval_samples = 1;
  SyntheticJob job(config);
  Controller controller(config, configuration_of(config), Knowledge());
  Course warm_up;
  run_steps(job, controller, 2 * StepTimeLearner::steps_per_measurement, warm_up);
  std::vector<double> seconds;
  for (int64_t round = 0; round < rounds; ++round) {
    double sum = 0;
    for (int64_t i = 0; i < decisions_per_round; ++i) {
      const Observation observation = job.next_step();
      const double start = monotonic_seconds();
      const bool decided = controller.observe(observation).decision.has_value();
      sum += monotonic_seconds() - start;
      COPUS_CHECK(decided);
    }
    seconds.push_back(sum / decisions_per_round);
  }
  return quartiles(seconds);
}

struct StepCost {
  Quartiles seconds = {};   // of the controller, per step of the run
  double step_seconds = 0;  // mean duration of the run's own steps
};

// Measures the controller's time per step in a run that decides and switches as configured, including the report of
// each switch and its outcome.
StepCost measure_steps(const RunConfig& config, int64_t rounds) {
  StepCost cost;
  std::vector<double> seconds;
  double run_seconds = 0;
  for (int64_t round = 0; round < rounds; ++round) {
    SyntheticJob job(config);
    Controller controller(config, configuration_of(config), Knowledge());
    double sum = 0;
    for (int64_t step = 0; step < steps_per_round; ++step) {
      const Observation observation = job.next_step();
      run_seconds += observation.step_seconds;
      const double start = monotonic_seconds();
      if (const auto intent = controller.observe(observation).intent) job.expect(*intent);
      if (const auto report = job.switch_if_due()) controller.report(*report);
      sum += monotonic_seconds() - start;
    }
    seconds.push_back(sum / steps_per_round);
  }
  cost.seconds = quartiles(seconds);
  cost.step_seconds = run_seconds / static_cast<double>(rounds * steps_per_round);
  return cost;
}

nlohmann::json to_json(const Job& job, const MeasuredTable& measured) {
  nlohmann::json table{{"model", job.model_name},
                       {"cluster", cluster_name},
                       {"gpus", job.world_size},
                       {"sequence_length", job.sequence_length},
                       {"global_batches", {job.smallest_batch, job.largest_batch}},
                       {"configurations", measured.num_configurations()},
                       {"too_large", measured.table.too_large}};
  set_quartiles(table, "seconds", measured.seconds);
  return table;
}

constexpr int decide_widths[] = {-16, 6, 16, 12, 12, 0};

void print_table(const Job& job, const MeasuredTable& measured) {
  const auto milliseconds = [](double seconds) { return format_number("%.2f", seconds * 1e3); };
  const Quartiles& seconds = measured.seconds;
  print_cells(decide_widths,
              {job.model_name, std::to_string(job.world_size), std::to_string(measured.num_configurations()),
               std::to_string(measured.table.too_large), milliseconds(seconds.median),
               concat(" (", milliseconds(seconds.lower), " to ", milliseconds(seconds.upper), ")")});
}

void print_steps(const std::string& whose, const StepCost& cost) {
  std::cout << "the controller, for each step " << whose << ": " << format_quartiles("%.4f", cost.seconds, 1e6, " us")
            << ", " << format_number("%.4f", 100 * cost.seconds.median / cost.step_seconds) << " % of a step of "
            << format_number("%.4f", cost.step_seconds * 1e3) << " ms\n";
}

int run_decide_bench(const DecideCommandOptions& options) {
  const MeasuredTable small = measure_table(small_job, options.rounds);
  const MeasuredTable large = measure_table(large_job, options.rounds);
  const RunConfig run = adapting_run_of(small_job);
  const size_t num_candidates = count_candidates(run);
  const Quartiles decision = measure_decision(run, options.rounds);
  const StepCost large_steps = measure_steps(run, options.rounds);
  const StepCost small_steps = measure_steps(adapting_run(), options.rounds);
  if (options.json) {
    nlohmann::json result{{"candidates", num_candidates},
                          {"table_seconds", small.seconds.median},
                          {"large_table_seconds", large.seconds.median},
                          {"step_seconds", small_steps.step_seconds},
                          {"step_fraction", small_steps.seconds.median / small_steps.step_seconds},
                          {"large_seconds_per_step", large_steps.seconds.median},
                          {"large_step_seconds", large_steps.step_seconds},
                          {"large_step_fraction", large_steps.seconds.median / large_steps.step_seconds},
                          {"table", to_json(small_job, small)},
                          {"large_table", to_json(large_job, large)},
                          {"rounds", options.rounds}};
    set_quartiles(result, "seconds_per_decision", decision);
    set_quartiles(result, "seconds_per_step", small_steps.seconds);
    std::cout << json_text(result) << '\n' << std::flush;
    return 0;
  }
  std::cout << "medians and quartiles of " << options.rounds << " rounds, on one core\n\n";
  print_cells(decide_widths, {"table of", "GPUs", "configurations", "too large", "ms", ""});
  print_table(small_job, small);
  print_table(large_job, large);
  std::cout << "\none decision among " << num_candidates
            << " candidates: " << format_quartiles("%.4f", decision, 1e3, " ms") << '\n';
  print_steps("of a small run", small_steps);
  print_steps(concat("of ", small_job.model_name, " on ", small_job.world_size, " GPUs"), large_steps);
  std::cout << std::flush;
  return 0;
}

}  // namespace

void add_decide_bench(CLI::App& bench, CommandAction& action) {
  auto options = std::make_shared<DecideCommandOptions>();
  CLI::App& decide = *bench.add_subcommand(
      "decide", "Predict all configurations of a small and of a large cluster, and choose among them as a run does");
  decide.add_option("--rounds", options->rounds, "How often to measure")->check(at_least(1))->capture_default_str();
  decide.add_flag("--json", options->json, "Print one JSON object");
  decide.footer("Example:\n  copus bench decide --json");
  decide.callback([options, &action] { action = [options] { return run_decide_bench(*options); }; });
}

}  // namespace copus
