// `copus bench relayout`: for how long training stands still while its layout changes, beside the time that the bytes
// it moves take as plain copies, and beside a checkpoint with a restart. The command starts itself again as the ranks:
// once to train and switch, once to be restarted.
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <iomanip>
#include <iostream>
#include <iterator>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "copus/base/durable_file.h"
#include "copus/base/error.h"
#include "copus/base/philox.h"
#include "copus/base/quantile.h"
#include "copus/base/units.h"
#include "copus/cli/option_checks.h"
#include "copus/comm/job/launcher.h"
#include "copus/workshop/bench/relayout_bench.h"
#include "copus/workshop/commands.h"
#include "copus/workshop/rank_results.h"

namespace copus {
namespace {

constexpr int64_t corpus_bytes = 1 << 16;
constexpr double most_of_pause_over_bound = 1.5;
constexpr double most_seconds_beyond = 0.02;

struct Shape {
  const char* name;
  int64_t layers, hidden, heads, ffn, vocab;
};
constexpr Shape shapes[] = {
    {"30M", 8, 512, 8, 1408, 4096},
    {"100M", 12, 768, 12, 2048, 8192},
    {"300M", 24, 1024, 16, 2560, 8192},
    {"tiny", 4, 32, 4, 64, 256},
};

struct Options {
  std::vector<std::string> parameters{"30M", "100M", "300M"};
  std::vector<int64_t> ranks{4, 8};
  std::string from, to;  // empty: those of usual_change
  int64_t rounds = 5;
  std::string directory;
  std::string device = "cpu";
  bool json = false;
  // Of the processes that the command starts.
  std::string as_rank;  // the file that rank 0 writes its result to
  std::string corpus;
  bool restart = false;
};

struct Change {
  ConfigurationChange from, to;
};

// What --from and --to leave out.
constexpr Configuration otherwise{{}, 8, 1};

Change usual_change(int64_t ranks) {
  const auto change = [](const char* from, const char* to) {
    return Change{parse_configuration_change(from), parse_configuration_change(to)};
  };
  return ranks == 4 ? change("d=4", "t=2,p=2") : change("t=2,p=4", "d=4,t=2");
}

ModelDescription model_of(const std::string& name) {
  const auto* const found =
      std::find_if(std::begin(shapes), std::end(shapes), [&](const Shape& shape) { return shape.name == name; });
  COPUS_CHECK(found != std::end(shapes), name);
  ModelDescription model;
  model.num_layers = found->layers;
  model.hidden_size = found->hidden;
  model.num_heads = found->heads;
  model.num_kv_heads = found->heads;
  model.head_dim = found->hidden / found->heads;
  model.intermediate_size = found->ffn;
  model.vocab_size = found->vocab;
  return model;
}

// Completes both configurations. Where nothing is said of ZeRO, it is on if all ranks' weights, gradients and moments,
// of 16 bytes an element, would take over half of the machine's memory.
std::pair<Configuration, Configuration> complete(const Change& change, const ModelDescription& model) {
  const int64_t copies = std::max(apply(change.from, otherwise).strategy.data_parallel,
                                  apply(change.to, otherwise).strategy.data_parallel);
  const double memory = static_cast<double>(sysconf(_SC_PHYS_PAGES)) * static_cast<double>(sysconf(_SC_PAGESIZE));
  Configuration rest = otherwise;
  if (static_cast<double>(copies) * 16 * static_cast<double>(count_parameters(model)) > memory / 2) {
    rest.strategy.zero_stage = 1;
  }
  return {apply(change.from, rest), apply(change.to, rest)};
}

RelayoutBenchOptions bench_of(const Options& options) {
  RelayoutBenchOptions bench;
  bench.model = model_of(options.parameters.front());
  bench.from = apply(parse_configuration_change(options.from), otherwise);
  bench.to = apply(parse_configuration_change(options.to), otherwise);
  bench.rounds = options.rounds;
  bench.corpus = options.corpus;
  bench.checkpoints = options.directory;
  return bench;
}

nlohmann::json spread(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const Quartiles quartile = quartiles(values);
  return {{"median", quartile.median}, {"quartiles", {quartile.lower, quartile.upper}}, {"most", values.back()}};
}

// The result of the switches in one direction.
nlohmann::json to_json(const std::vector<MeasuredSwitch>& switches) {
  const auto bound = [](const MeasuredSwitch& one) { return static_cast<double>(one.bound_bytes) / one.copy_rate; };
  const auto all = [&](const auto& value) {
    std::vector<double> values;
    for (const MeasuredSwitch& one : switches) values.push_back(value(one));
    return spread(values);
  };
  std::map<std::string, std::vector<double>> phases;
  for (const MeasuredSwitch& one : switches) {
    for (const auto& [name, seconds] : one.report.phase_seconds) phases[name].push_back(seconds);
  }
  nlohmann::json medians = nlohmann::json::object();
  for (const auto& [name, seconds] : phases) medians[name] = quantile(seconds, 0.5);
  int64_t peak = 0;
  for (const MeasuredSwitch& one : switches) peak = std::max(peak, one.report.peak_bytes);
  const nlohmann::json pause = all([](const MeasuredSwitch& one) { return one.report.pause_seconds; });
  const SwitchReport& report = switches.front().report;
  const double copy_rate = all([](const MeasuredSwitch& one) { return one.copy_rate; })["median"];
  return {{"from", to_string(report.from)},
          {"to", to_string(report.to)},
          {"zero_stage", std::max(report.from.strategy.zero_stage, report.to.strategy.zero_stage)},
          {"pause_seconds", pause["median"]},
          {"pause_seconds_quartiles", pause["quartiles"]},
          {"pause_seconds_most", pause["most"]},
          {"pause_by_phase", medians},
          {"prepare_seconds", all([](const MeasuredSwitch& one) { return one.report.prepare_seconds; })["median"]},
          {"bytes_moved", report.bytes_copied},
          {"bytes_received", report.bytes_received},
          {"copy_bytes_per_second", copy_rate},
          {"bound_seconds", static_cast<double>(switches.front().bound_bytes) / copy_rate},
          // Each switch is compared with the copies right after it, so that a busy machine slows both.
          {"pause_over_limit", all([&](const MeasuredSwitch& one) {
             return one.report.pause_seconds / (most_of_pause_over_bound * bound(one) + most_seconds_beyond);
           })["median"]},
          {"peak_bytes", peak},
          {"peak_bound_bytes", report.peak_bound_bytes}};
}

int run_as_rank(const Options& options) {
  const std::optional<RankEnvironment> environment = read_rank_environment();
  if (!environment) throw UserError("--as-rank is for the processes that 'copus bench relayout' starts");
  std::unique_ptr<World> world = join_world(*environment, default_wait_seconds);
  RelayoutBenchOptions bench = bench_of(options);
  bench.device = options.device;
  bench.local_rank = environment->local_rank;
  nlohmann::json result;
  if (options.restart) {
    result = {{"ready_at", measure_restart(bench, std::move(world))}};
  } else {
    const RelayoutBenchResult measured = measure_relayout(bench, std::move(world));
    result = {{"there", to_json(measured.there)},
              {"back", to_json(measured.back)},
              {"decided_at", measured.decided_at},
              {"written_at", measured.written_at}};
  }
  if (environment->rank == 0) write_results(options.as_rank, result.dump());
  return 0;
}

// Makes a text of random letters, since what is learned does not matter.
std::string make_corpus() {
  std::string text;
  for (uint64_t i = 0; text.size() < corpus_bytes; ++i) {
    for (const uint32_t bits : philox(1, 0, i)) text.push_back(static_cast<char>('a' + bits % 26));
  }
  return text;
}

// A folder of our own, which is removed with this object.
class TemporaryFolder {
 public:
  explicit TemporaryFolder(const std::filesystem::path& parent) {
    std::string pattern = (parent / "copus-relayout-XXXXXX").string();
    if (mkdtemp(pattern.data()) == nullptr) throw UserError(concat("cannot make a folder in ", parent.string()));
    path_ = pattern;
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  ~TemporaryFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

// Starts one group of ranks and returns its result; empty where the ranks have failed and said why.
std::optional<nlohmann::json> start_ranks(int64_t ranks, const Options& options, bool restart, int& exit_code) {
  const MemoryFile results;
  std::vector<std::string> arguments{"bench",        "relayout",
                                     "--as-rank",    results.path(),
                                     "--corpus",     options.corpus,
                                     "--directory",  options.directory,
                                     "--parameters", options.parameters.front(),
                                     "--from",       options.from,
                                     "--to",         options.to,
                                     "--rounds",     std::to_string(options.rounds),
                                     "--device",     options.device};
  if (restart) arguments.emplace_back("--restart");
  exit_code = launch_ranks(ranks, arguments);
  if (exit_code != 0) return std::nullopt;
  return nlohmann::json::parse(read_text_file(results.path()));
}

void print_cells(const std::vector<std::string>& cells) {
  constexpr int widths[] = {6, 48, 6, 24, 10, 10, 9, 10, 12, 8, 22};
  COPUS_CHECK(cells.size() == std::size(widths));
  for (size_t i = 0; i < cells.size(); ++i) std::cout << std::setw(widths[i]) << cells[i];
  std::cout << '\n' << std::flush;
}

void print_header() {
  std::cout << "fp32; medians and quartiles. bound: the bytes moved at the rate at which all ranks copy together; "
               "limit: 1.5 x bound + 20 ms\n\n";
  print_cells({"model", "change", "zero", "pause ms (quartiles)", "moved", "bound ms", "/ limit", "prepare s",
               "restart s", "/ pause", "peak (promised)"});
}

void print_row(const nlohmann::json& row) {
  const auto number = [](const char* format, const nlohmann::json& value, double factor) {
    return value.is_null() ? std::string("-") : format_number(format, value.get<double>() * factor);
  };
  const nlohmann::json& quartile = row["pause_seconds_quartiles"];
  print_cells({row["parameters"].get<std::string>(),
               concat(row["from"].get<std::string>(), " -> ", row["to"].get<std::string>()),
               std::to_string(row["zero_stage"].get<int64_t>()),
               concat(number("%.1f", row["pause_seconds"], 1e3), " (", number("%.1f", quartile[0], 1e3), " to ",
                      number("%.1f", quartile[1], 1e3), ")"),
               format_bytes(row["bytes_moved"].get<double>()), number("%.1f", row["bound_seconds"], 1e3),
               number("%.2f", row["pause_over_limit"], 1), number("%.2f", row["prepare_seconds"], 1),
               number("%.2f", row["checkpoint_restart_seconds"], 1),
               number("%.0f", row["checkpoint_restart_over_pause"], 1),
               concat(format_bytes(row["peak_bytes"].get<double>()), " (",
                      format_bytes(row["peak_bound_bytes"].get<double>()), ")")});
  std::string phases;
  for (const auto& [name, seconds] : row["pause_by_phase"].items()) {
    phases += concat(phases.empty() ? "" : ", ", name, " ", number("%.1f", seconds, 1e3), " ms");
  }
  std::cout << "        " << phases << '\n' << std::flush;
}

// The rows of both directions of one change; none where the ranks have failed.
std::vector<nlohmann::json> measure_change(const Options& options, int64_t ranks, int& exit_code) {
  const auto switches = start_ranks(ranks, options, false, exit_code);
  if (!switches) return {};
  const auto restart = start_ranks(ranks, options, true, exit_code);
  if (!restart) return {};
  std::vector<nlohmann::json> rows;
  for (const char* const direction : {"there", "back"}) {
    nlohmann::json row = (*switches)[direction];
    row["parameters"] = options.parameters.front();
    row["elements"] = count_parameters(model_of(options.parameters.front()));
    row["ranks"] = ranks;
    row["device"] = options.device;
    row["rounds"] = options.rounds;
    for (const char* const field :
         {"checkpoint_restart_seconds", "checkpoint_seconds", "checkpoint_restart_over_pause"}) {
      row[field] = nullptr;  // measured in one direction alone
    }
    rows.push_back(std::move(row));
  }
  const double decided = (*switches)["decided_at"].get<double>();
  const double seconds = (*restart)["ready_at"].get<double>() - decided;
  rows[0]["checkpoint_restart_seconds"] = seconds;
  rows[0]["checkpoint_seconds"] = (*switches)["written_at"].get<double>() - decided;
  rows[0]["checkpoint_restart_over_pause"] = seconds / rows[0]["pause_seconds"].get<double>();
  return rows;
}

int run_relayout_bench(Options options) {
  if (!options.as_rank.empty()) return run_as_rank(options);
  if (options.from.empty() != options.to.empty()) throw UserError("--from and --to: give both, or neither");
  std::vector<Change> changes;
  if (!options.from.empty()) {
    changes.push_back({read_configuration("--from", options.from), read_configuration("--to", options.to)});
  } else {
    for (const int64_t ranks : options.ranks) changes.push_back(usual_change(ranks));
  }
  const MemoryFile corpus(make_corpus());
  options.corpus = corpus.path();
  const std::filesystem::path parent =
      options.directory.empty() ? std::filesystem::temp_directory_path() : std::filesystem::path(options.directory);
  if (!options.json) print_header();
  nlohmann::json rows = nlohmann::json::array();
  const std::vector<std::string> all_parameters = options.parameters;
  for (const std::string& parameters : all_parameters) {
    for (const Change& change : changes) {
      options.parameters = {parameters};
      const auto [from, to] = complete(change, model_of(parameters));
      options.from = to_string(from);
      options.to = to_string(to);
      const int64_t ranks = from.strategy.world_size();
      if (ranks != to.strategy.world_size()) {
        throw UserError(concat("--from ", options.from, " has ", ranks, " ranks and --to ", options.to, " ",
                               to.strategy.world_size()));
      }
      const TemporaryFolder folder(parent);
      options.directory = folder.path();
      int exit_code = 0;
      for (nlohmann::json& row : measure_change(options, ranks, exit_code)) {
        if (!options.json) print_row(row);
        rows.push_back(std::move(row));
      }
      if (exit_code != 0) return exit_code;
    }
  }
  if (options.json) std::cout << nlohmann::json{{"rows", rows}}.dump() << '\n' << std::flush;
  return 0;
}

}  // namespace

void add_relayout_bench(CLI::App& bench, Action& action) {
  auto options = std::make_shared<Options>();
  CLI::App& relayout = *bench.add_subcommand(
      "relayout", "The pause of a change of layout, beside plain copies and beside a checkpoint with a restart");
  relayout.add_option("--parameters", options->parameters, "Models: 30M, 100M, 300M; tiny to try it out")
      ->check(CLI::IsMember({"30M", "100M", "300M", "tiny"}))
      ->delimiter(',')
      ->capture_default_str();
  relayout.add_option("--ranks", options->ranks, "Numbers of ranks, where --from and --to do not say them")
      ->check(CLI::IsMember({4, 8}))
      ->delimiter(',')
      ->capture_default_str();
  relayout.add_option("--from", options->from,
                      concat("A configuration, as PART=VALUE,...; what is left out is as in ", to_string(otherwise),
                             "; usually d=4, or t=2,p=4 on 8 ranks. Parts: ", configuration_parts()));
  relayout.add_option("--to", options->to, "The one to change to, and back; usually t=2,p=2, or d=4,t=2 on 8 ranks");
  relayout.add_option("--rounds", options->rounds, "Changes there and back")->check(at_least(1))->capture_default_str();
  relayout.add_option("--directory", options->directory, "Where the checkpoint goes; otherwise the temporary files'");
  relayout.add_option("--device", options->device, "cpu or cuda; the ranks share its GPUs")
      ->check(CLI::IsMember({"cpu", "cuda"}))
      ->capture_default_str();
  relayout.add_flag("--json", options->json, "Print one JSON object");
  relayout.add_option("--as-rank", options->as_rank)->group("");
  relayout.add_option("--corpus", options->corpus)->group("");
  relayout.add_flag("--restart", options->restart)->group("");
  relayout.footer("Example:\n  copus bench relayout --parameters 30M --ranks 4 --rounds 3");
  relayout.callback([options, &action] { action = [options] { return run_relayout_bench(*options); }; });
}

}  // namespace copus
