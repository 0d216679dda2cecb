// `copus bench decide`: what predicting and choosing cost: the table of a small cluster, that of a large one, and one
// decision among many candidates, on one core.
#include <algorithm>
#include <chrono>
#include <iomanip>
#include <iostream>
#include <limits>
#include <memory>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "copus/base/error.h"
#include "copus/base/quantile.h"
#include "copus/cli/commands.h"
#include "copus/cli/option_checks.h"
#include "copus/config/descriptions.h"
#include "copus/performance/table.h"
#include "copus/statistics/efficiency.h"

namespace copus {
namespace {

struct Options {
  int64_t rounds = 7;
  bool json = false;
};

constexpr size_t num_candidates = 10000;
constexpr int decisions_per_round = 20;

// What a table is made of.
struct Job {
  std::string model_name;
  int64_t sequence_length;
  int64_t world_size;
  int64_t smallest_batch;
  int64_t largest_batch;  // with all powers of two in between
};

const Job small_job = {"qwen2.5-32b", 4096, 32, 16, 1024};
const Job large_job = {"llama-3.1-405b", 8192, 16384, 1024, 8192};
constexpr const char* cluster_name = "h100-sxm";

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

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
    const auto start = std::chrono::steady_clock::now();
    measured.table = make_table(model, job.sequence_length, cluster, copus_in_bf16(), space, Knowledge());
    seconds.push_back(seconds_since(start));
  }
  measured.seconds = quartiles(seconds);
  COPUS_CHECK(!measured.table.cells.empty(), job.model_name);
  return measured;
}

// The candidate of the highest Goodput, which is what a decision compares.
size_t decide(const std::vector<TableCell>& candidates, double noise_scale) {
  constexpr double calibration = 1, reference_batch = 1, alpha = 0.5;
  const double critical = critical_batch(calibration, noise_scale);
  size_t best = 0;
  double highest = -std::numeric_limits<double>::infinity();
  for (size_t i = 0; i < candidates.size(); ++i) {
    const auto batch = static_cast<double>(candidates[i].configuration.global_batch);
    const double worth = goodput(candidates[i].throughput(), batch, critical, reference_batch, alpha);
    if (worth > highest) {
      highest = worth;
      best = i;
    }
  }
  return best;
}

Quartiles measure_decision(const std::vector<TableCell>& cells, int64_t rounds) {
  std::vector<TableCell> candidates;
  for (size_t i = 0; i < num_candidates; ++i) candidates.push_back(cells[i % cells.size()]);
  std::vector<double> seconds;
  int64_t chosen_batches = 0;  // used below, so that no decision can be left out
  for (int64_t round = 0; round < rounds; ++round) {
    const auto start = std::chrono::steady_clock::now();
    for (int i = 0; i < decisions_per_round; ++i) {
      const double noise_scale = 16 << (i % 8);
      chosen_batches += candidates[decide(candidates, noise_scale)].configuration.global_batch;
    }
    seconds.push_back(seconds_since(start) / decisions_per_round);
  }
  COPUS_CHECK(chosen_batches > 0);
  return quartiles(seconds);
}

nlohmann::json to_json(const Quartiles& quartiles) { return {quartiles.lower, quartiles.upper}; }

nlohmann::json to_json(const Job& job, const MeasuredTable& measured) {
  return {{"model", job.model_name},
          {"cluster", cluster_name},
          {"gpus", job.world_size},
          {"sequence_length", job.sequence_length},
          {"global_batches", {job.smallest_batch, job.largest_batch}},
          {"configurations", measured.num_configurations()},
          {"too_large", measured.table.too_large},
          {"seconds", measured.seconds.median},
          {"seconds_quartiles", to_json(measured.seconds)}};
}

void print_table(std::ostream& out, const Job& job, const MeasuredTable& measured) {
  out << std::left << std::setw(16) << job.model_name << std::right << std::setw(6) << job.world_size << std::setw(16)
      << measured.num_configurations() << std::setw(12) << measured.table.too_large << std::setw(12)
      << measured.seconds.median * 1e3 << " (" << measured.seconds.lower * 1e3 << " to " << measured.seconds.upper * 1e3
      << ")\n";
}

int run_decide_bench(const Options& options) {
  const MeasuredTable small = measure_table(small_job, options.rounds);
  const MeasuredTable large = measure_table(large_job, options.rounds);
  const Quartiles decision = measure_decision(small.table.cells, options.rounds);
  if (options.json) {
    const nlohmann::json result{{"candidates", num_candidates},
                                {"seconds_per_decision", decision.median},
                                {"seconds_per_decision_quartiles", to_json(decision)},
                                {"table_seconds", small.seconds.median},
                                {"large_table_seconds", large.seconds.median},
                                {"table", to_json(small_job, small)},
                                {"large_table", to_json(large_job, large)},
                                {"rounds", options.rounds}};
    std::cout << result.dump() << '\n' << std::flush;
    return 0;
  }
  std::ostringstream out;
  out << "medians and quartiles of " << options.rounds << " rounds, on one core\n\n"
      << std::fixed << std::setprecision(2) << "table of          GPUs  configurations   too large          ms\n";
  print_table(out, small_job, small);
  print_table(out, large_job, large);
  out << "\none decision among " << num_candidates << " candidates: " << std::setprecision(4) << decision.median * 1e3
      << " ms (" << decision.lower * 1e3 << " to " << decision.upper * 1e3 << ")\n";
  std::cout << out.str() << std::flush;
  return 0;
}

}  // namespace

void add_decide_bench(CLI::App& bench, Action& action) {
  auto options = std::make_shared<Options>();
  CLI::App& decide = *bench.add_subcommand(
      "decide", "Predict all configurations of a small and of a large cluster, and choose among 10,000");
  decide.add_option("--rounds", options->rounds, "How often to measure")->check(at_least(1))->capture_default_str();
  decide.add_flag("--json", options->json, "Print one JSON object");
  decide.footer("Example:\n  copus bench decide --json");
  decide.callback([options, &action] { action = [options] { return run_decide_bench(*options); }; });
}

}  // namespace copus
