// `copus bench gns`: measures the fraction of a step's time that measuring the gradient noise scale takes. The command
// tries two sources of the smaller gradients: the ranks of a job with two data-parallel ranks, and the first
// micro-batch of a single rank. Ranks are started once for each shape and source.
#include <algorithm>
#include <iostream>
#include <iterator>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "copus/base/error.h"
#include "copus/base/text/json_text.h"
#include "copus/base/text/units.h"
#include "copus/cli/option_checks.h"
#include "copus/workshop/bench/models.h"
#include "copus/workshop/bench/probe_bench.h"
#include "copus/workshop/commands.h"
#include "copus/workshop/measuring_run.h"
#include "copus/workshop/memory_file.h"
#include "copus/workshop/table.h"

namespace copus {
namespace {

// The size of a rank's micro-batch for each model.
struct Case {
  const char* model;
  int64_t sequence_length, micro_batch;
};
constexpr Case cases[] = {{"a", 512, 4}, {"b", 128, 16}, {"tiny", 32, 4}};

struct ProbeCommandOptions {
  std::vector<std::string> shapes{"a", "b"};
  int64_t steps = 0;
  bool json = false;
};

// The work of each rank. Request: "shape", "micro_batches", "steps" and "corpus", a path. Result: a row of --json.
nlohmann::json measure_probe_as_rank(const nlohmann::json& request, const RankEnvironment& environment) {
  const auto shape = request.at("shape").get<std::string>();
  const auto* const found = std::ranges::find(cases, shape, &Case::model);
  COPUS_CHECK(found != std::end(cases), shape);
  const std::unique_ptr<World> world = join_world(environment, default_wait_seconds);
  const auto micro_batches = request.at("micro_batches").get<int64_t>();
  const int64_t ranks = world->size();
  const ProbeBenchResult result = measure_probe({.model = bench_model(shape),
                                                 .sequence_length = found->sequence_length,
                                                 .micro_batch = found->micro_batch,
                                                 .micro_batches = micro_batches,
                                                 .corpus = request.at("corpus").get<std::string>(),
                                                 .steps = request.at("steps").get<int64_t>()},
                                                *world);
  nlohmann::json row{{"shape", shape},
                     {"ranks", ranks},
                     {"micro_batches", micro_batches},
                     {"source", ranks > 1 ? "rank" : "prefix"},
                     {"steps", result.steps},
                     {"seconds_off", result.seconds_off},
                     {"seconds_on", result.seconds_on},
                     {"probe_fraction", result.probe_fraction}};
  set_quartiles(row, "overhead_fraction", result.overhead);
  return row;
}

constexpr int probe_widths[] = {5, 6, 14, 8, 6, 10, 10, 28, 9};

void print_probe_header() {
  std::cout << "one thread a rank, fp32; steps with and without the probe take turns\n\n";
  print_cells(probe_widths, {"shape", "ranks", "micro-batches", "source", "steps", "off ms", "on ms",
                             "overhead % (quartiles)", "probe %"});
}

void print_probe_row(const nlohmann::json& row) {
  const auto milliseconds = [&](const char* field) { return format_number("%.1f", row[field].get<double>() * 1e3); };
  print_cells(probe_widths,
              {row["shape"].get<std::string>(), std::to_string(row["ranks"].get<int64_t>()),
               std::to_string(row["micro_batches"].get<int64_t>()), row["source"].get<std::string>(),
               std::to_string(row["steps"].get<int64_t>()), milliseconds("seconds_off"), milliseconds("seconds_on"),
               format_quartiles("%.2f", get_quartiles(row, "overhead_fraction"), 100),
               format_number("%.2f", row["probe_fraction"].get<double>() * 100)});
}

int run_gns_bench(const ProbeCommandOptions& options) {
  if (options.steps % probe_bench_turn != 0) {
    throw UserError(
        concat("--steps ", options.steps, " is no multiple of 4: a turn is four steps, two of them with the probe"));
  }
  const MemoryFile corpus(random_letters(1 << 20));
  if (!options.json) print_probe_header();
  nlohmann::json rows = nlohmann::json::array();
  for (const std::string& shape : options.shapes) {
    // Two ranks with one micro-batch each, and one rank with two.
    for (const int64_t ranks : {2, 1}) {
      rows.push_back(run_ranks(
          ranks, "probe",
          {{"shape", shape}, {"micro_batches", 3 - ranks}, {"steps", options.steps}, {"corpus", corpus.path()}}));
      if (!options.json) print_probe_row(rows.back());
    }
  }
  const auto worst = [&](const char* field) {
    double largest = rows.front()[field].get<double>();
    for (const nlohmann::json& row : rows) largest = std::max(largest, row[field].get<double>());
    return largest;
  };
  if (options.json) {
    const nlohmann::json result{
        {"overhead_fraction", worst("overhead_fraction")}, {"probe_fraction", worst("probe_fraction")}, {"rows", rows}};
    std::cout << json_text(result) << '\n' << std::flush;
  }
  return 0;
}

}  // namespace

void add_probe_bench(CLI::App& bench, CommandAction& action, RankJobs& jobs) {
  jobs["probe"] = measure_probe_as_rank;
  auto options = std::make_shared<ProbeCommandOptions>();
  CLI::App& gns = *bench.add_subcommand("gns", about_probe_bench);
  gns.add_option("--shapes", options->shapes, "Models: a and b of the step benchmark, tiny to try it out")
      ->check(one_of({"a", "b", "tiny"}))
      ->capture_default_str();
  gns.add_option("--steps", options->steps, "Steps to measure of each case; 0: as many as fit in half a minute")
      ->check(at_least(0))
      ->capture_default_str();
  gns.add_flag("--json", options->json, "Print one JSON object");
  gns.footer("Example:\n  copus bench gns --shapes b --steps 40");
  gns.callback([options, &action] { action = [options] { return run_gns_bench(*options); }; });
}

}  // namespace copus
