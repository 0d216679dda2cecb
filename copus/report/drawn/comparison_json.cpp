// Writes a comparison as results.json. The file does not depend on when or where the runs took place, so on a virtual
// or modelled clock a repetition gives the same bytes.
#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "copus/base/text/json_text.h"
#include "copus/report/drawn/comparison.h"

namespace copus {

namespace {

using ResultJson = nlohmann::ordered_json;

ResultJson to_value(const std::optional<double>& value) { return value ? ResultJson(*value) : ResultJson(nullptr); }

ResultJson exponential(const std::optional<double>& value) {
  return value ? ResultJson(std::exp(*value)) : ResultJson(nullptr);
}

ResultJson to_value(const PairedDifference& difference) {
  return {{"pairs", difference.pairs},
          {"mean", difference.mean},
          {"low", to_value(difference.low)},
          {"high", to_value(difference.high)},
          {"standard_deviation", to_value(difference.standard_deviation)},
          {"detectable", to_value(difference.detectable)}};
}

ResultJson to_value(const ArmMeasure& measurement) {
  const bool is_target = measurement.target.has_value();
  ResultJson runs = ResultJson::array();
  for (size_t i = 0; i < measurement.seeds.size(); ++i) {
    ResultJson run{{"seed", measurement.seeds[i]}};
    if (is_target) {
      run["seconds"] = to_value(measurement.seconds[i]);
      run["tokens"] = to_value(measurement.tokens[i]);
    } else {
      run["held_out_loss"] = to_value(measurement.losses[i]);
    }
    runs.push_back(std::move(run));
  }
  ResultJson object;
  if (is_target) object["held_out_loss"] = *measurement.target;
  object["refusal"] = measurement.refusal.empty() ? ResultJson(nullptr) : ResultJson(measurement.refusal);
  if (is_target) {
    object["seconds"] = to_value(measurement.mean_seconds);
    object["tokens"] = to_value(measurement.mean_tokens);
  } else {
    object["mean_held_out_loss"] = to_value(measurement.mean_loss);
  }
  const auto& difference = measurement.against_reference;
  object[is_target ? "log_seconds_difference" : "difference"] =
      difference ? to_value(*difference) : ResultJson(nullptr);
  if (is_target) {
    object["time_ratio"] = difference ? ResultJson(std::exp(difference->mean)) : ResultJson(nullptr);
    object["time_ratio_low"] = difference ? exponential(difference->low) : ResultJson(nullptr);
    object["time_ratio_high"] = difference ? exponential(difference->high) : ResultJson(nullptr);
  }
  object["runs"] = std::move(runs);
  return object;
}

ResultJson to_value(const Experiment& experiment, const ArmResult& result) {
  const auto arm = std::find_if(experiment.arms.begin(), experiment.arms.end(),
                                [&](const ExperimentArm& candidate) { return candidate.name == result.arm; });
  ResultJson object{{"name", result.name}, {"arm", nullptr}, {"set", nullptr}};
  if (arm != experiment.arms.end()) {
    object["arm"] = arm->name;
    object["set"] = arm->set;
  }
  object["targets"] = ResultJson::array();
  object["final_loss"] = nullptr;
  for (const ArmMeasure& measurement : result.measurements) {
    if (measurement.target) {
      object["targets"].push_back(to_value(measurement));
    } else {
      object["final_loss"] = to_value(measurement);
    }
  }
  return object;
}

ResultJson to_value(const Experiment& experiment, const std::vector<ArmResult>& results) {
  ResultJson list = ResultJson::array();
  for (const ArmResult& result : results) list.push_back(to_value(experiment, result));
  return list;
}

}  // namespace

std::string to_json(const Experiment& experiment, const Comparison& comparison) {
  ResultJson groups = ResultJson::array();
  for (const GroupChoice& choice : comparison.groups) {
    groups.push_back({{"name", choice.group},
                      {"chosen", choice.chosen.empty() ? ResultJson(nullptr) : ResultJson(choice.chosen)},
                      {"reason", choice.reason},
                      {"screened", to_value(experiment, choice.arms)}});
  }
  const ResultJson object{{"format", "copus-comparison"},
                          {"version", 1},
                          {"base", experiment.base},
                          {"set", experiment.set},
                          {"seeds", experiment.seeds},
                          {"screening_seeds", experiment.screening_seeds},
                          {"draw_per_seed", experiment.draw_per_seed},
                          {"targets", experiment.targets},
                          {"reference", experiment.reference},
                          {"groups", std::move(groups)},
                          {"results", to_value(experiment, comparison.results)}};
  return json_text(object, 2) + '\n';
}

}  // namespace copus
