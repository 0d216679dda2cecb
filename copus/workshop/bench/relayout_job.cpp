#include "copus/workshop/bench/relayout_job.h"

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "copus/base/numbers/quantile.h"
#include "copus/description/configuration_text.h"
#include "copus/workshop/bench/models.h"
#include "copus/workshop/bench/relayout_bench.h"
#include "copus/workshop/table.h"

namespace copus {
namespace {

constexpr double most_of_pause_over_bound = 1.5;
constexpr double most_seconds_beyond = 0.02;

// The fields of a table row for the switches in one direction.
nlohmann::json to_json(const std::vector<MeasuredSwitch>& switches) {
  const auto all = [&](const auto& value) {
    std::vector<double> values;
    for (const MeasuredSwitch& one : switches) values.push_back(value(one));
    return values;
  };
  const auto median = [&](const auto& value) { return quantile(all(value), 0.5); };
  std::map<std::string, std::vector<double>> phases;
  int64_t peak = 0;
  for (const MeasuredSwitch& one : switches) {
    for (const auto& [name, seconds] : one.report.phase_seconds) phases[name].push_back(seconds);
    peak = std::max(peak, one.report.peak_bytes);
  }
  const SwitchReport& report = switches.front().report;
  const double copy_rate = median([](const MeasuredSwitch& one) { return one.copy_rate; });
  const std::vector<double> pauses = all([](const MeasuredSwitch& one) { return one.report.pause_seconds; });
  nlohmann::json row{{"from", to_string(report.from)},
                     {"to", to_string(report.to)},
                     {"zero_stage", std::max(report.from.strategy.zero_stage, report.to.strategy.zero_stage)},
                     {"pause_seconds_most", *std::ranges::max_element(pauses)},
                     {"prepare_seconds", median([](const MeasuredSwitch& one) { return one.report.prepare_seconds; })},
                     {"bytes_moved", report.bytes_copied},
                     {"bytes_received", report.bytes_received},
                     {"copy_bytes_per_second", copy_rate},
                     {"bound_seconds", static_cast<double>(switches.front().bound_bytes) / copy_rate},
                     // The limit of each switch is computed from the rate of copies right after it, so that other load
                     // on the machine affects both pause and limit.
                     {"pause_over_limit", median([](const MeasuredSwitch& one) {
                        const double bound = static_cast<double>(one.bound_bytes) / one.copy_rate;
                        return one.report.pause_seconds / (most_of_pause_over_bound * bound + most_seconds_beyond);
                      })},
                     {"peak_bytes", peak},
                     {"peak_bound_bytes", report.peak_bound_bytes}};
  set_quartiles(row, "pause_seconds", quartiles(pauses));
  row["pause_by_phase"] = nlohmann::json::object();
  for (const auto& [name, seconds] : phases) row["pause_by_phase"][name] = quantile(seconds, 0.5);
  return row;
}

RelayoutBenchOptions bench_of(const nlohmann::json& request, const RankEnvironment& environment) {
  const auto configuration = [&](const char* field) {
    return parse_configuration_change(request.at(field).get<std::string>()).values;
  };
  return {.model = bench_model(request.at("parameters").get<std::string>()),
          .from = configuration("from"),
          .to = configuration("to"),
          .rounds = request.at("rounds").get<int64_t>(),
          .corpus = request.at("corpus").get<std::string>(),
          .checkpoints = request.at("directory").get<std::string>(),
          .device = request.at("device").get<std::string>(),
          .local_rank = environment.local_rank};
}

}  // namespace

nlohmann::json measure_relayout_as_rank(const nlohmann::json& request, const RankEnvironment& environment) {
  const RelayoutBenchResult measured =
      measure_relayout(bench_of(request, environment), join_world(environment, default_wait_seconds));
  return {{"there", to_json(measured.there)},
          {"back", to_json(measured.back)},
          {"decided_at", measured.decided_at},
          {"written_at", measured.written_at}};
}

nlohmann::json measure_restart_as_rank(const nlohmann::json& request, const RankEnvironment& environment) {
  return measure_restart(bench_of(request, environment), join_world(environment, default_wait_seconds));
}

}  // namespace copus
