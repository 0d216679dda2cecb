// `copus bench gns`: the share of a step that measuring the gradient noise scale takes, where two ranks share the
// batch. The command starts itself again as the ranks, once for each shape and source of the small batch.
#include <algorithm>
#include <iomanip>
#include <iostream>
#include <iterator>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "copus/base/durable_file.h"
#include "copus/base/error.h"
#include "copus/base/philox.h"
#include "copus/base/units.h"
#include "copus/cli/option_checks.h"
#include "copus/comm/job/launcher.h"
#include "copus/workshop/bench/probe_bench.h"
#include "copus/workshop/commands.h"
#include "copus/workshop/rank_results.h"

namespace copus {
namespace {

constexpr int64_t ranks = 2;
constexpr int64_t corpus_bytes = 1 << 20;

// Those of the step benchmark beside PyTorch (bench/pytorch/shapes.py), and one that takes a moment.
struct Shape {
  const char* name;
  int64_t layers, hidden, heads, kv_heads, ffn, vocab, sequence, micro_batch;
};
constexpr Shape shapes[] = {
    {"a", 8, 512, 8, 4, 1408, 8192, 512, 4},
    {"b", 6, 256, 4, 4, 704, 256, 128, 16},
    {"tiny", 2, 32, 4, 2, 64, 256, 32, 4},
};

struct Options {
  std::vector<std::string> shapes{"a", "b"};
  int64_t steps = 0;
  bool json = false;
  // Of the processes that the command starts.
  std::string as_rank;  // the file that rank 0 writes its result to
  std::string corpus;
  int64_t micro_batches = 1;
};

const Shape& find_shape(const std::string& name) {
  const auto* const found =
      std::find_if(std::begin(shapes), std::end(shapes), [&](const Shape& shape) { return shape.name == name; });
  COPUS_CHECK(found != std::end(shapes), name);
  return *found;
}

ProbeBenchOptions options_of(const Shape& shape) {
  ProbeBenchOptions options;
  options.model.num_layers = shape.layers;
  options.model.hidden_size = shape.hidden;
  options.model.num_heads = shape.heads;
  options.model.num_kv_heads = shape.kv_heads;
  options.model.head_dim = shape.hidden / shape.heads;
  options.model.intermediate_size = shape.ffn;
  options.model.vocab_size = shape.vocab;
  options.sequence_length = shape.sequence;
  options.micro_batch = shape.micro_batch;
  return options;
}

int run_as_rank(const Options& options) {
  const std::optional<RankEnvironment> environment = read_rank_environment();
  if (!environment) throw UserError("--as-rank is for the processes that 'copus bench gns' starts");
  const std::unique_ptr<World> world = join_world(*environment, default_wait_seconds);
  ProbeBenchOptions bench = options_of(find_shape(options.shapes.front()));
  bench.micro_batches = options.micro_batches;
  bench.corpus = options.corpus;
  bench.steps = options.steps;
  const ProbeBenchResult result = measure_probe(bench, *world);
  if (world->rank() == 0) {
    const nlohmann::json row{{"shape", options.shapes.front()},
                             {"micro_batches", options.micro_batches},
                             {"source", options.micro_batches > 1 ? "prefix" : "rank"},
                             {"steps", result.steps},
                             {"seconds_off", result.seconds_off},
                             {"seconds_on", result.seconds_on},
                             {"overhead_fraction", result.overhead.median},
                             {"overhead_fraction_quartiles", {result.overhead.lower, result.overhead.upper}},
                             {"probe_fraction", result.probe_fraction}};
    write_results(options.as_rank, row.dump());
  }
  return 0;
}

// Random letters: what is learned does not matter.
std::string make_corpus() {
  std::string text;
  for (uint64_t i = 0; text.size() < corpus_bytes; ++i) {
    for (const uint32_t bits : philox(1, 0, i)) text.push_back(static_cast<char>('a' + bits % 26));
  }
  return text;
}

// A line of the table.
void print_cells(const std::vector<std::string>& cells) {
  constexpr int widths[] = {5, 14, 8, 6, 10, 10, 28, 9};
  COPUS_CHECK(cells.size() == std::size(widths));
  for (size_t i = 0; i < cells.size(); ++i) std::cout << std::setw(widths[i]) << cells[i];
  std::cout << '\n' << std::flush;
}

void print_header() {
  std::cout << ranks
            << " data-parallel ranks with one thread each, fp32; steps with and without the probe take turns\n\n";
  print_cells({"shape", "micro-batches", "source", "steps", "off ms", "on ms", "overhead % (quartiles)", "probe %"});
}

void print_row(const nlohmann::json& row) {
  const auto milliseconds = [&](const char* field) { return format_number("%.1f", row[field].get<double>() * 1e3); };
  const auto percent = [](const nlohmann::json& share) { return format_number("%.2f", share.get<double>() * 100); };
  const nlohmann::json& quartiles = row["overhead_fraction_quartiles"];
  print_cells(
      {row["shape"].get<std::string>(), std::to_string(row["micro_batches"].get<int64_t>()),
       row["source"].get<std::string>(), std::to_string(row["steps"].get<int64_t>()), milliseconds("seconds_off"),
       milliseconds("seconds_on"),
       concat(percent(row["overhead_fraction"]), " (", percent(quartiles[0]), " to ", percent(quartiles[1]), ")"),
       percent(row["probe_fraction"])});
}

int run_gns_bench(const Options& options) {
  if (!options.as_rank.empty()) return run_as_rank(options);
  if (options.steps % probe_bench_turn != 0) {
    throw UserError(
        concat("--steps ", options.steps, " is no multiple of 4: a turn is four steps, two of them with the probe"));
  }
  const MemoryFile corpus(make_corpus());
  if (!options.json) print_header();
  nlohmann::json rows = nlohmann::json::array();
  for (const std::string& shape : options.shapes) {
    for (const int64_t micro_batches : {1, 2}) {
      const MemoryFile results;
      const int exit_code = launch_ranks(
          ranks, {"bench", "gns", "--as-rank", results.path(), "--corpus", corpus.path(), "--shapes", shape,
                  "--micro-batches", std::to_string(micro_batches), "--steps", std::to_string(options.steps)});
      if (exit_code != 0) return exit_code;  // the ranks have said why
      rows.push_back(nlohmann::json::parse(read_text_file(results.path())));
      if (!options.json) print_row(rows.back());
    }
  }
  const auto worst = [&](const char* field) {
    double largest = rows.front()[field].get<double>();
    for (const nlohmann::json& row : rows) largest = std::max(largest, row[field].get<double>());
    return largest;
  };
  if (options.json) {
    const nlohmann::json result{{"overhead_fraction", worst("overhead_fraction")},
                                {"probe_fraction", worst("probe_fraction")},
                                {"ranks", ranks},
                                {"rows", rows}};
    std::cout << result.dump() << '\n' << std::flush;
  }
  return 0;
}

}  // namespace

void add_probe_bench(CLI::App& bench, Action& action) {
  auto options = std::make_shared<Options>();
  CLI::App& gns = *bench.add_subcommand("gns", "What measuring the gradient noise scale costs a training step");
  gns.add_option("--shapes", options->shapes, "Models: a and b of the step benchmark, tiny to try it out")
      ->check(CLI::IsMember({"a", "b", "tiny"}))
      ->capture_default_str();
  gns.add_option("--steps", options->steps, "Steps to measure of each case; 0: as many as fit in half a minute")
      ->check(at_least(0))
      ->capture_default_str();
  gns.add_flag("--json", options->json, "Print one JSON object");
  gns.add_option("--as-rank", options->as_rank)->group("");
  gns.add_option("--corpus", options->corpus)->group("");
  gns.add_option("--micro-batches", options->micro_batches)->group("");
  gns.footer("Example:\n  copus bench gns --shapes b --steps 40");
  gns.callback([options, &action] { action = [options] { return run_gns_bench(*options); }; });
}

}  // namespace copus
