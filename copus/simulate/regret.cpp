#include "copus/simulate/regret.h"

#include <algorithm>
#include <limits>

#include "copus/base/error.h"
#include "copus/base/numbers/quantile.h"

namespace copus {

RegretOutcome outcome_of(const Scenario& scenario, const SimulatedRun& run) {
  const StraightRun& straight = scenario.best_static;
  const auto time_of = [&](double seconds, double progress) {
    if (scenario.end.kind == ScenarioEnd::Kind::progress) return seconds / straight.seconds;
    const double step = scenario.seconds.at(straight.configuration);
    return straight.seconds / static_seconds(scenario.truth, straight.configuration, step, progress);
  };
  return {.scenario = scenario.number,
          .job = scenario.job,
          .worth = std::string(to_string(scenario.worth)),
          .growth = std::string(to_string(scenario.growth.family)),
          .time = time_of(run.seconds, run.progress),
          .clairvoyant_time = time_of(scenario.clairvoyant.seconds, scenario.clairvoyant.progress),
          .steps = run.steps,
          .relayouts = run.relayouts,
          .batch_changes = run.batch_changes,
          .calibrations = run.calibrations,
          .pause_share = run.pause_seconds / run.seconds};
}

RegretSummary summarise(const std::vector<RegretOutcome>& outcomes) {
  COPUS_CHECK(!outcomes.empty());
  const auto count = static_cast<double>(outcomes.size());
  RegretSummary summary;
  summary.scenarios = std::ssize(outcomes);
  double gain = 0;
  std::vector<double> slowdowns;
  for (const RegretOutcome& outcome : outcomes) {
    gain += (1 - outcome.time) / count;
    summary.clairvoyant_gain += (1 - outcome.clairvoyant_time) / count;
    slowdowns.push_back(outcome.slowdown());
    summary.within_1_percent += (outcome.slowdown() <= 0.01) / count;
    summary.within_3_percent += (outcome.slowdown() <= 0.03) / count;
    summary.relayouts += static_cast<double>(outcome.relayouts) / count;
    summary.batch_changes += static_cast<double>(outcome.batch_changes) / count;
  }
  constexpr double rounding = 1e-9;  // relative; the clairvoyant run may equal the best static run
  summary.captured =
      summary.clairvoyant_gain > rounding ? gain / summary.clairvoyant_gain : std::numeric_limits<double>::quiet_NaN();
  summary.median_slowdown = quantile(slowdowns, 0.5);
  summary.worst_slowdown = *std::max_element(slowdowns.begin(), slowdowns.end());
  return summary;
}

std::vector<RegretOutcome> worst_of(std::vector<RegretOutcome> outcomes, size_t count) {
  std::stable_sort(outcomes.begin(), outcomes.end(),
                   [](const RegretOutcome& a, const RegretOutcome& b) { return a.time > b.time; });
  outcomes.resize(std::min(count, outcomes.size()));
  return outcomes;
}

}  // namespace copus
