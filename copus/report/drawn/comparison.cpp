#include "copus/report/drawn/comparison.h"

#include <algorithm>
#include <cmath>
#include <functional>

#include "copus/base/error.h"
#include "copus/report/files/run_summary.h"
#include "copus/report/logs/run_log.h"

namespace copus {

namespace {

// Names seeds in a message: "seed 3", "seeds 1 and 3", "seeds 1, 2 and 3".
std::string name_seeds(const std::vector<int64_t>& seeds) {
  std::string text = seeds.size() == 1 ? "seed" : "seeds";
  for (size_t i = 0; i < seeds.size(); ++i) {
    text += concat(i == 0 ? " " : i + 1 == seeds.size() ? " and " : ", ", seeds[i]);
  }
  return text;
}

// Collects which runs lack a measure, and why.
class Refusal {
 public:
  explicit Refusal(std::vector<std::string> reasons) : reasons_(std::move(reasons)), seeds_(reasons_.size()) {}

  void add(size_t reason, int64_t seed) { seeds_[reason].push_back(seed); }
  std::string text() const {
    std::string text;
    for (size_t i = 0; i < reasons_.size(); ++i) {
      if (!seeds_[i].empty()) text += concat(text.empty() ? "" : "; ", name_seeds(seeds_[i]), " ", reasons_[i]);
    }
    return text;
  }

 private:
  std::vector<std::string> reasons_;
  std::vector<std::vector<int64_t>> seeds_;
};

std::vector<double> logarithms(const std::vector<std::optional<double>>& values) {
  std::vector<double> result;
  for (const std::optional<double>& value : values) result.push_back(std::log(value.value()));
  return result;
}

std::vector<double> values_of(const std::vector<std::optional<double>>& values) {
  std::vector<double> result;
  for (const std::optional<double>& value : values) result.push_back(value.value());
  return result;
}

double mean_of(const std::vector<double>& values) {
  double sum = 0;
  for (const double value : values) sum += value;
  return sum / static_cast<double>(values.size());
}

const RunOutcome& find_outcome(const std::vector<RunOutcome>& outcomes, const std::string& arm, int64_t seed) {
  const auto found = std::find_if(outcomes.begin(), outcomes.end(), [&](const RunOutcome& outcome) {
    return outcome.arm == arm && outcome.seed == seed;
  });
  COPUS_CHECK(found != outcomes.end(), arm, ", ", seed);
  return *found;
}

ArmMeasure measure_target(double target, const std::vector<std::reference_wrapper<const RunOutcome>>& runs) {
  ArmMeasure result;
  result.target = target;
  Refusal refusal({"failed", "never reached it", "had reached it before the first evaluation (evaluate more often)"});
  for (const RunOutcome& run : runs) {
    result.seeds.push_back(run.seed);
    const TargetCrossing crossing = time_to_target(run.evaluations, target);
    const bool reached = !run.failed && crossing.kind == TargetCrossing::Kind::reached;
    result.seconds.push_back(reached ? std::optional(crossing.seconds) : std::nullopt);
    result.tokens.push_back(reached ? std::optional(crossing.tokens) : std::nullopt);
    if (!reached) refusal.add(run.failed ? 0 : crossing.kind == TargetCrossing::Kind::never ? 1 : 2, run.seed);
  }
  result.refusal = refusal.text();
  if (!result.refusal.empty()) return result;
  result.mean_seconds = std::exp(mean_of(logarithms(result.seconds)));
  result.mean_tokens = std::exp(mean_of(logarithms(result.tokens)));
  return result;
}

ArmMeasure measure_final_loss(const std::vector<std::reference_wrapper<const RunOutcome>>& runs) {
  ArmMeasure result;
  Refusal refusal({"failed", "ended without a finite held-out loss"});
  for (const RunOutcome& run : runs) {
    result.seeds.push_back(run.seed);
    result.losses.push_back(run.failed ? std::nullopt : run.final_loss);
    if (!result.losses.back()) refusal.add(run.failed ? 0 : 1, run.seed);
  }
  result.refusal = refusal.text();
  if (result.refusal.empty()) result.mean_loss = mean_of(values_of(result.losses));
  return result;
}

std::vector<std::reference_wrapper<const RunOutcome>> runs_of(const std::vector<RunOutcome>& outcomes,
                                                              const std::string& arm,
                                                              const std::vector<int64_t>& seeds) {
  std::vector<std::reference_wrapper<const RunOutcome>> runs;
  for (const int64_t seed : seeds) runs.emplace_back(find_outcome(outcomes, arm, seed));
  return runs;
}

ArmResult measure_arm(const Experiment& experiment, const std::string& name, const std::string& arm,
                      const std::vector<int64_t>& seeds, const std::vector<RunOutcome>& outcomes) {
  ArmResult result{name, arm, {}};
  const auto runs = runs_of(outcomes, arm, seeds);
  for (const double target : experiment.targets) result.measurements.push_back(measure_target(target, runs));
  if (experiment.final_loss) result.measurements.push_back(measure_final_loss(runs));
  return result;
}

// The result of a group in which no arm could be chosen.
ArmResult not_measured(const Experiment& experiment, const std::string& group) {
  ArmResult result{group, "", {}};
  ArmMeasure nothing;
  nothing.refusal = "no arm of the group could be chosen";
  for (const double target : experiment.targets) {
    nothing.target = target;
    result.measurements.push_back(nothing);
  }
  nothing.target.reset();
  if (experiment.final_loss) result.measurements.push_back(nothing);
  return result;
}

// Finds the first arm with the smallest `mean`; null if no arm has a mean.
template <class Mean>
const std::string* find_least(const std::vector<ExperimentArm>& arms, const Mean& mean) {
  const std::string* best = nullptr;
  double least = 0;
  for (const ExperimentArm& arm : arms) {
    const std::optional<double> value = mean(arm);
    if (!value || (best != nullptr && *value >= least)) continue;
    best = &arm.name;
    least = *value;
  }
  return best;
}

void set_against_reference(const ArmMeasure& reference, ArmMeasure& ours) {
  if (!ours.refusal.empty() || !reference.refusal.empty()) return;
  ours.against_reference = ours.target ? paired_difference(logarithms(ours.seconds), logarithms(reference.seconds))
                                       : paired_difference(values_of(ours.losses), values_of(reference.losses));
}

}  // namespace

RunOutcome read_outcome(const std::filesystem::path& run_directory, const std::string& arm, int64_t seed) {
  RunOutcome outcome(arm, seed);
  for (const StepRecord& record : read_run_log(run_directory / "run.jsonl")) {
    if (!record.held_out_loss || !std::isfinite(*record.held_out_loss)) continue;
    outcome.evaluations.push_back(
        {record.elapsed_seconds, static_cast<double>(record.consumed_tokens), *record.held_out_loss});
  }
  const std::optional<RunSummary> summary = read_summary(run_directory);
  if (summary && summary->held_out_loss && std::isfinite(*summary->held_out_loss)) {
    outcome.final_loss = summary->held_out_loss;
  }
  return outcome;
}

GroupChoice choose_arm(const Experiment& experiment, const std::string& group,
                       const std::vector<RunOutcome>& outcomes) {
  GroupChoice choice{group, "", "", {}};
  const std::vector<ExperimentArm> arms = experiment.arms_of(group);
  for (const ExperimentArm& arm : arms) {
    choice.arms.push_back(measure_arm(experiment, arm.name, arm.name, experiment.screening_seeds, outcomes));
  }
  std::vector<double> targets = experiment.targets;
  std::sort(targets.begin(), targets.end());
  for (const double target : targets) {
    // An arm that reached the target before its first evaluation may be the fastest, but this is unknown.
    const auto too_early = [&](const ExperimentArm& arm) {
      const auto runs = runs_of(outcomes, arm.name, experiment.screening_seeds);
      return std::any_of(runs.begin(), runs.end(), [&](const RunOutcome& run) {
        return time_to_target(run.evaluations, target).kind == TargetCrossing::Kind::before;
      });
    };
    if (std::any_of(arms.begin(), arms.end(), too_early)) continue;
    const std::string* const best = find_least(arms, [&](const ExperimentArm& arm) {
      return measure_target(target, runs_of(outcomes, arm.name, experiment.screening_seeds)).mean_seconds;
    });
    if (best == nullptr) continue;
    choice.chosen = *best;
    choice.reason = concat("the fastest to a held-out loss of ", target, " on the screening seeds");
    return choice;
  }
  const std::string* const best = find_least(arms, [&](const ExperimentArm& arm) {
    return measure_final_loss(runs_of(outcomes, arm.name, experiment.screening_seeds)).mean_loss;
  });
  if (best != nullptr) choice.chosen = *best;
  choice.reason = best != nullptr ? "the lowest held-out loss at the end on the screening seeds"
                                  : "on the screening seeds every arm has a run that failed";
  return choice;
}

Comparison compare(const Experiment& experiment, const std::vector<RunOutcome>& outcomes) {
  Comparison comparison;
  const ArmResult* reference = nullptr;
  for (const std::string& name : experiment.contenders()) {
    std::string arm = name;
    if (!experiment.arms_of(name).empty()) {
      comparison.groups.push_back(choose_arm(experiment, name, outcomes));
      arm = comparison.groups.back().chosen;
    }
    comparison.results.push_back(arm.empty() ? not_measured(experiment, name)
                                             : measure_arm(experiment, name, arm, experiment.seeds, outcomes));
  }
  for (const ArmResult& result : comparison.results) {
    if (result.name == experiment.reference) reference = &result;
  }
  COPUS_CHECK(reference != nullptr, experiment.reference);
  for (ArmResult& result : comparison.results) {
    if (&result == reference) continue;
    for (size_t i = 0; i < result.measurements.size(); ++i) {
      set_against_reference(reference->measurements[i], result.measurements[i]);
    }
  }
  return comparison;
}

}  // namespace copus
