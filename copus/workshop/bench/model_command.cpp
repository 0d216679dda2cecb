// `copus bench model`: compares the models of time and memory with published runs. The constants of each program and
// cluster are fitted on half of its sets of runs; the agreement is reported for both halves.
#include <algorithm>
#include <cmath>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "copus/base/error.h"
#include "copus/base/files/durable_file.h"
#include "copus/base/text/json_text.h"
#include "copus/base/text/units.h"
#include "copus/config/descriptions.h"
#include "copus/workshop/commands.h"
#include "copus/workshop/published/memory_agreement.h"
#include "copus/workshop/published/time_agreement.h"
#include "copus/workshop/table.h"

namespace copus {
namespace {

struct ModelCommandOptions {
  std::string data;
  std::string failures;
  bool json = false;
  bool runs = false;
};

using Json = nlohmann::ordered_json;

const char* name_of_half(const JudgedSet& set) { return set.is_fitted ? "fitted" : "held out"; }

// NaN is written as null.
Json summary_to_json(const HalfSummary& summary) {
  return {{"num_sets", summary.sets},
          {"mean_top1_regret", summary.mean_top1_regret},
          {"mean_kendall_tau", summary.mean_kendall_tau},
          {"median_absolute_error", summary.median_absolute_error},
          {"mean_absolute_error", summary.mean_absolute_error},
          {"share_in_range", summary.share_in_range},
          {"median_absolute_error_all_runs", summary.median_absolute_error_all_runs}};
}

Json run_to_json(const JudgedRun& run) {
  const Configuration& configuration = run.run.configuration;
  Json parts;
  visit_parts(run.parts, [&](const char* name, double seconds) { parts[name] = seconds; });
  const SecondsRange range = run.doubt.range(run.predicted_seconds);
  return {{"row_id", run.run.row_id},
          {"strategy", to_string(configuration.strategy)},
          {"micro_batch", configuration.micro_batch},
          {"measured_seconds", run.measured_seconds},
          {"predicted_seconds", run.predicted_seconds},
          {"range_seconds", {range.low, range.high}},
          {"beyond_measured", run.doubt.beyond_measured},
          {"parts", std::move(parts)}};
}

Json set_to_json(const JudgedSet& set, bool with_runs) {
  Json json{{"name", set.name},
            {"half", name_of_half(set)},
            {"cluster", set.group},
            {"rows", set.runs.size()},
            {"layouts", set.layouts.size()},
            {"kendall_tau", set.kendall_tau},
            {"top1_regret", set.top1_regret},
            {"median_absolute_error", set.median_absolute_error},
            {"share_in_range", set.share_in_range}};
  if (with_runs) {
    for (const JudgedRun& run : set.runs) json["runs"].push_back(run_to_json(run));
  }
  return json;
}

Json optional_to_json(const std::optional<double>& value) { return value ? Json(*value) : Json(nullptr); }

Json to_json(const PublishedAgreement& agreement, const MemoryAgreement& memory, bool with_runs) {
  Json json = summary_to_json(agreement.held_out);
  json["infeasible_recall"] = optional_to_json(memory.infeasible_recall());
  json["feasible_recall"] = optional_to_json(memory.feasible_recall());
  json["fitted_half"] = summary_to_json(agreement.fitted);
  const Quartiles& slowdown = agreement.uncorrected_slowdown;
  json["uncorrected_slowdown"] = {{"sets", agreement.sets.size()},
                                  {"lower", slowdown.lower},
                                  {"median", slowdown.median},
                                  {"upper", slowdown.upper}};
  json["constants"] = Json::object();
  for (const auto& [group, constants] : agreement.constants) {
    json["constants"][group] = {{"compute", constants.compute}, {"communication", constants.communication}};
  }
  json["sets"] = Json::array();
  for (const JudgedSet& set : agreement.sets) json["sets"].push_back(set_to_json(set, with_runs));
  json["left_out"] = Json::object();
  for (const auto& [reason, count] : agreement.left_out) json["left_out"][reason] = count;
  json["memory"] = {{"ran", memory.ran},
                    {"ran_called_feasible", memory.ran_called_feasible},
                    {"out_of_memory", memory.out_of_memory},
                    {"out_of_memory_called_infeasible", memory.out_of_memory_called_infeasible},
                    {"unclear", memory.unclear},
                    {"unclear_called_infeasible", memory.unclear_called_infeasible},
                    {"failed_otherwise", memory.failed_otherwise},
                    {"left_out", memory.left_out},
                    {"with_memory", memory.with_memory},
                    {"median_absolute_error", optional_to_json(memory.median_absolute_error)}};
  json["misjudged"] = Json::array();
  for (const MisjudgedRun& run : memory.misjudged) {
    json["misjudged"].push_back({{"row_id", run.row_id},
                                 {"group", run.group},
                                 {"status", run.status.empty() ? Json(nullptr) : Json(run.status)},
                                 {"predicted_bytes", run.prediction.parts.total()},
                                 {"device_bytes", run.memory_bytes}});
  }
  return json;
}

std::string percent(double share) { return std::isnan(share) ? "-" : format_number("%.1f %%", share * 100); }
std::string decimal(double value) { return std::isnan(value) ? "-" : format_number("%.3f", value); }

void print_half(const char* name, const HalfSummary& half) {
  constexpr int widths[] = {-9, 5, 9, 9, 9, 9, 11, 10};
  print_cells(widths, {name, concat(half.sets), decimal(half.mean_kendall_tau), percent(half.mean_top1_regret),
                       percent(half.median_absolute_error), percent(half.mean_absolute_error),
                       percent(half.median_absolute_error_all_runs), percent(half.share_in_range)});
}

void print_run(const JudgedRun& run) {
  constexpr int widths[] = {-12, -40, 0};
  const StepTimeParts& parts = run.parts;
  const SecondsRange range = run.doubt.range(run.predicted_seconds);
  print_cells(widths, {concat("  row ", run.run.row_id), to_string(run.run.configuration),
                       concat(" measured ", decimal(run.measured_seconds), " s, predicted ",
                              decimal(run.predicted_seconds), " s (", decimal(range.low), " to ", decimal(range.high),
                              run.doubt.beyond_measured ? ", beyond what was fitted" : "", "): compute ",
                              decimal(parts.compute), ", tensor ", decimal(parts.tensor_communication), ", bubble ",
                              decimal(parts.bubble), ", data ", decimal(parts.data_communication), ", optimizer ",
                              decimal(parts.optimizer))});
}

const char* beyond_note(const JudgedSet& set) {
  const bool beyond =
      std::any_of(set.runs.begin(), set.runs.end(), [](const JudgedRun& run) { return run.doubt.beyond_measured; });
  return beyond ? ", on more nodes than were fitted" : "";
}

void print_table(const PublishedAgreement& agreement, bool with_runs) {
  std::cout << "set     half      rows  layouts      tau   regret    error  in range  cluster\n";
  constexpr int set_widths[] = {-8, -8, 6, 9, 9, 9, 9, 10, 0};
  for (const JudgedSet& set : agreement.sets) {
    print_cells(set_widths, {set.name, name_of_half(set), concat(set.runs.size()), concat(set.layouts.size()),
                             decimal(set.kendall_tau), percent(set.top1_regret), percent(set.median_absolute_error),
                             percent(set.share_in_range), concat("  ", set.group, beyond_note(set))});
    if (!with_runs) continue;
    for (const JudgedRun& run : set.runs) print_run(run);
  }
  std::cout << "\nhalf      sets  mean tau   regret    error     mean  all rows'  in range\n";
  print_half("held out", agreement.held_out);
  print_half("fitted", agreement.fitted);
  const Quartiles& slowdown = agreement.uncorrected_slowdown;
  std::cout << "\nwithout constants, measured / predicted seconds of the layout predicted to be fastest: "
            << decimal(slowdown.median) << " in the median of " << agreement.sets.size() << " sets, "
            << decimal(slowdown.lower) << " to " << decimal(slowdown.upper) << " in the middle half\n"
            << "\nconstants  compute  communication\n";
  constexpr int constants_widths[] = {18, 15, 0};
  for (const auto& [group, constants] : agreement.constants) {
    print_cells(constants_widths, {decimal(constants.compute), decimal(constants.communication), "  " + group});
  }
  if (!agreement.left_out.empty()) std::cout << "\nrows left out\n";
  constexpr int left_out_widths[] = {7, 0};
  for (const auto& [reason, count] : agreement.left_out) print_cells(left_out_widths, {concat(count), "  " + reason});
}

std::vector<PublishedRun> read_runs(const std::string& path, PublishedTable table) {
  return parse_published_runs(read_text_file(path), table, path);
}

void print_memory(const MemoryAgreement& memory) {
  std::cout << "\nmemory    called rightly\n"
            << "ran       " << memory.ran_called_feasible << " of " << memory.ran << " feasible, "
            << percent(memory.feasible_recall().value_or(std::nan(""))) << '\n'
            << "failed    " << memory.out_of_memory_called_infeasible << " of " << memory.out_of_memory
            << " infeasible that ran out of memory, " << percent(memory.infeasible_recall().value_or(std::nan("")))
            << "; " << memory.unclear_called_infeasible << " of " << memory.unclear << " that may have\n";
  for (const MisjudgedRun& run : memory.misjudged) {
    std::cout << "  row " << run.row_id << " of " << run.group
              << (run.status.empty() ? ", which ran" : ", " + run.status) << ": needs "
              << format_bytes(run.prediction.parts.total()) << ", has " << format_bytes(run.memory_bytes) << '\n';
  }
}

int run_model_bench(const ModelCommandOptions& options) {
  const std::vector<PublishedRun> runs = read_runs(options.data, PublishedTable::throughput);
  const std::vector<PublishedRun> failures =
      options.failures.empty() ? std::vector<PublishedRun>() : read_runs(options.failures, PublishedTable::failures);
  const PublishedAgreement agreement = judge_step_times(runs, find_cluster);
  const MemoryAgreement memory = judge_memory(runs, failures);
  if (options.json) {
    std::cout << json_text(to_json(agreement, memory, options.runs)) << '\n';
  } else {
    print_table(agreement, options.runs);
    print_memory(memory);
  }
  return 0;
}

}  // namespace

void add_model_bench(CLI::App& bench, CommandAction& action) {
  auto options = std::make_shared<ModelCommandOptions>();
  CLI::App& command = *bench.add_subcommand("model", "Predictions against published runs: ranks, regret, errors");
  command.add_option("--data", options->data, "CSV file of published throughput")->required();
  command.add_option("--failures", options->failures, "CSV file of published runs that failed");
  command.add_flag("--json", options->json, "One JSON object instead of tables");
  command.add_flag("--runs", options->runs, "Every run, with the parts of its predicted time");
  command.footer("Example:\n  copus bench model --data RUNS.csv --failures FAILURES.csv");
  command.callback([&action, options] { action = [options] { return run_model_bench(*options); }; });
}

}  // namespace copus
