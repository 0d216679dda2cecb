// `copus bench relayout`: measures how long training pauses for a change of layout. The pause is compared with the time
// of plain copies of the same bytes, and with a checkpoint and a restart. Ranks are started twice for each change: once
// to train and switch, and once to measure the restart.
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "copus/base/error.h"
#include "copus/base/text/json_text.h"
#include "copus/base/text/units.h"
#include "copus/cli/option_checks.h"
#include "copus/workshop/bench/models.h"
#include "copus/workshop/bench/relayout_job.h"
#include "copus/workshop/commands.h"
#include "copus/workshop/measuring_run.h"
#include "copus/workshop/memory_file.h"
#include "copus/workshop/table.h"
#include "copus/workshop/temporary_folder.h"

namespace copus {
namespace {

constexpr int64_t corpus_bytes = 1 << 16;

struct RelayoutCommandOptions {
  std::vector<std::string> parameters{"30M", "100M", "300M"};
  std::vector<int64_t> ranks{4, 8};
  std::string from, to;  // empty: those of usual_change()
  int64_t rounds = 5;
  std::string directory;
  std::string device = "cpu";
  bool json = false;
};

struct Change {
  ConfigurationChange from, to;
};

// The values of what --from and --to do not specify.
constexpr Configuration otherwise{{}, 8, 1};

Change usual_change(int64_t ranks) {
  const auto change = [](const char* from, const char* to) {
    return Change{parse_configuration_change(from), parse_configuration_change(to)};
  };
  return ranks == 4 ? change("d=4", "t=2,p=2") : change("t=2,p=4", "d=4,t=2");
}

// Completes both configurations. If ZeRO is not specified, it is on if the weights, gradients and moments of all ranks
// together, at 16 bytes per element, would take more than half of the machine's memory.
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

constexpr int relayout_widths[] = {6, 48, 6, 24, 10, 10, 9, 10, 12, 8, 22};

void print_relayout_header() {
  std::cout << "fp32; medians and quartiles. bound: the bytes moved at the rate at which all ranks copy together; "
               "limit: 1.5 x bound + 20 ms\n\n";
  print_cells(relayout_widths, {"model", "change", "zero", "pause ms (quartiles)", "moved", "bound ms", "/ limit",
                                "prepare s", "restart s", "/ pause", "peak (promised)"});
}

void print_relayout_row(const nlohmann::json& row) {
  const auto number = [](const char* format, const nlohmann::json& value, double factor) {
    return value.is_null() ? std::string("-") : format_number(format, value.get<double>() * factor);
  };
  print_cells(
      relayout_widths,
      {row["parameters"].get<std::string>(),
       concat(row["from"].get<std::string>(), " -> ", row["to"].get<std::string>()),
       std::to_string(row["zero_stage"].get<int64_t>()),
       format_quartiles("%.1f", get_quartiles(row, "pause_seconds"), 1e3),
       format_bytes(row["bytes_moved"].get<double>()), number("%.1f", row["bound_seconds"], 1e3),
       number("%.2f", row["pause_over_limit"], 1), number("%.2f", row["prepare_seconds"], 1),
       number("%.2f", row["checkpoint_restart_seconds"], 1), number("%.0f", row["checkpoint_restart_over_pause"], 1),
       concat(format_bytes(row["peak_bytes"].get<double>()), " (", format_bytes(row["peak_bound_bytes"].get<double>()),
              ")")});
  std::string phases;
  for (const auto& [name, seconds] : row["pause_by_phase"].items()) {
    phases += concat(phases.empty() ? "" : ", ", name, " ", number("%.1f", seconds, 1e3), " ms");
  }
  std::cout << "        " << phases << '\n' << std::flush;
}

// The changes that the user has named or, if none, the usual ones.
std::vector<Change> changes_of(const RelayoutCommandOptions& options) {
  if (options.from.empty() != options.to.empty()) throw UserError("--from and --to: give both, or neither");
  if (!options.from.empty()) {
    return {{read_configuration("--from", options.from), read_configuration("--to", options.to)}};
  }
  std::vector<Change> changes;
  std::ranges::transform(options.ranks, std::back_inserter(changes), usual_change);
  return changes;
}

// The rows for both directions of one change of one model.
std::vector<nlohmann::json> measure_change(const std::string& parameters, const Change& change,
                                           const RelayoutCommandOptions& options, const std::string& corpus) {
  const ModelDescription model = bench_model(parameters);
  const auto [from, to] = complete(change, model);
  const int64_t ranks = from.strategy.world_size();
  if (ranks != to.strategy.world_size()) {
    throw UserError(concat("--from ", to_string(from), " has ", ranks, " ranks and --to ", to_string(to), " ",
                           to.strategy.world_size()));
  }
  const TemporaryFolder folder(options.directory.empty() ? std::filesystem::temp_directory_path()
                                                         : std::filesystem::path(options.directory));
  const nlohmann::json request{{"parameters", parameters},           {"from", to_string(from)},  {"to", to_string(to)},
                               {"rounds", options.rounds},           {"device", options.device}, {"corpus", corpus},
                               {"directory", folder.path().string()}};
  const nlohmann::json switches = run_ranks(ranks, "relayout", request);
  const double ready_at = run_ranks(ranks, "restart", request).get<double>();

  std::vector<nlohmann::json> rows{switches.at("there"), switches.at("back")};
  for (nlohmann::json& row : rows) {
    row["parameters"] = parameters;
    row["elements"] = count_parameters(model);
    row["ranks"] = ranks;
    row["device"] = options.device;
    row["rounds"] = options.rounds;
    for (const char* const field :
         {"checkpoint_restart_seconds", "checkpoint_seconds", "checkpoint_restart_over_pause"}) {
      row[field] = nullptr;  // measured in one direction only
    }
  }
  const double decided_at = switches.at("decided_at").get<double>(), seconds = ready_at - decided_at;
  rows[0]["checkpoint_restart_seconds"] = seconds;
  rows[0]["checkpoint_seconds"] = switches.at("written_at").get<double>() - decided_at;
  rows[0]["checkpoint_restart_over_pause"] = seconds / rows[0]["pause_seconds"].get<double>();
  return rows;
}

int run_relayout_bench(const RelayoutCommandOptions& options) {
  const std::vector<Change> changes = changes_of(options);
  const MemoryFile corpus(random_letters(corpus_bytes));
  if (!options.json) print_relayout_header();
  nlohmann::json rows = nlohmann::json::array();
  for (const std::string& parameters : options.parameters) {
    for (const Change& change : changes) {
      for (nlohmann::json& row : measure_change(parameters, change, options, corpus.path())) {
        if (!options.json) print_relayout_row(row);
        rows.push_back(std::move(row));
      }
    }
  }
  if (options.json) std::cout << json_text(nlohmann::json{{"rows", rows}}) << '\n' << std::flush;
  return 0;
}

}  // namespace

void add_relayout_bench(CLI::App& bench, CommandAction& action, RankJobs& jobs) {
  jobs["relayout"] = measure_relayout_as_rank;
  jobs["restart"] = measure_restart_as_rank;
  auto options = std::make_shared<RelayoutCommandOptions>();
  CLI::App& relayout = *bench.add_subcommand("relayout", about_relayout_bench);
  relayout.add_option("--parameters", options->parameters, "Models: 30M, 100M, 300M; tiny to try it out")
      ->check(one_of({"30M", "100M", "300M", "tiny"}))
      ->delimiter(',')
      ->capture_default_str();
  relayout.add_option("--ranks", options->ranks, "Numbers of ranks, where --from and --to do not say them")
      ->check(one_of({"4", "8"}))
      ->delimiter(',')
      ->capture_default_str();
  relayout.add_option("--from", options->from,
                      concat("A configuration, as PART=VALUE,...; what is left out is as in ", to_string(otherwise),
                             "; usually d=4, or t=2,p=4 on 8 ranks. Parts: ", configuration_parts()));
  relayout.add_option("--to", options->to, "The one to change to, and back; usually t=2,p=2, or d=4,t=2 on 8 ranks");
  relayout.add_option("--rounds", options->rounds, "Changes there and back")->check(at_least(1))->capture_default_str();
  relayout.add_option("--directory", options->directory, "Where the checkpoint goes; otherwise the temporary files'");
  relayout.add_option("--device", options->device, "cpu or cuda; the ranks share its GPUs")
      ->check(one_of({"cpu", "cuda"}))
      ->capture_default_str();
  relayout.add_flag("--json", options->json, "Print one JSON object");
  relayout.footer("Example:\n  copus bench relayout --parameters 30M --ranks 4 --rounds 3");
  relayout.callback([options, &action] { action = [options] { return run_relayout_bench(*options); }; });
}

}  // namespace copus
