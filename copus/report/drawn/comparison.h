// Computes the results of an experiment for each arm: the times to reach held-out losses, and the final losses,
// compared seed by seed with the reference arm. The inputs are the outcomes of runs, wherever they come from.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "copus/config/experiment.h"
#include "copus/statistics/compared/loss_curve.h"
#include "copus/statistics/compared/paired_difference.h"

namespace copus {

// A run of one arm with one seed.
struct RunOutcome {
  RunOutcome(std::string its_arm, int64_t its_seed, bool has_failed = false)
      : arm(std::move(its_arm)), seed(its_seed), failed(has_failed) {}

  std::string arm;
  int64_t seed;
  bool failed;  // it ended early, for example because it diverged; nothing else is then known
  std::vector<Evaluation> evaluations;
  std::optional<double> final_loss;  // held-out loss of the final weights; empty if not finite
};

// Reads the outcome of a finished run from its log and summary. Throws UserError if these are damaged.
RunOutcome read_outcome(const std::filesystem::path& run_directory, const std::string& arm, int64_t seed);

// The result of one arm by one measure: the time to a target, or the final loss. If a run lacks the measure, `refusal`
// names the run and no mean is given, because the mean of the other runs would be too good.
struct ArmMeasure {
  std::optional<double> target;                        // empty: the loss at the end
  std::string refusal;                                 // why there is no mean; empty if there is one
  std::vector<int64_t> seeds;                          // one item per run, here and in the lists below
  std::vector<std::optional<double>> seconds, tokens;  // to the target
  std::vector<std::optional<double>> losses;           // at the end
  std::optional<double> mean_seconds, mean_tokens;     // geometric means
  std::optional<double> mean_loss;                     // arithmetic mean
  std::optional<PairedDifference> against_reference;   // of log seconds, or of losses
};

struct ArmResult {
  std::string name;                      // of the arm, or of the group that it represents
  std::string arm;                       // the arm that ran; for a group, the chosen one; empty: none could be chosen
  std::vector<ArmMeasure> measurements;  // the targets in the order of the experiment, then the loss at the end
};

// How the fastest arm of a group was found.
struct GroupChoice {
  std::string group;
  std::string chosen;           // empty: none
  std::string reason;           // for people
  std::vector<ArmResult> arms;  // all of them, on the screening seeds
};

struct Comparison {
  std::vector<GroupChoice> groups;
  std::vector<ArmResult> results;  // in the order of Experiment::contenders
};

// Chooses the arm of a group that is fastest on the screening seeds, whose outcomes must all be given. Arms are
// compared by the mean of log seconds to the lowest target that some arm reached with every seed; of equal arms, the
// first is chosen. A target that some run reached before its first evaluation is skipped, because the time is unknown.
// If no target remains, chooses the arm with the smallest mean of final losses.
GroupChoice choose_arm(const Experiment& experiment, const std::string& group, const std::vector<RunOutcome>& outcomes);

// Compares the contenders. `outcomes` holds all screening runs, and all runs of the arms to compare.
Comparison compare(const Experiment& experiment, const std::vector<RunOutcome>& outcomes);

// The comparison as results.json, and as tables for people.
std::string to_json(const Experiment& experiment, const Comparison& comparison);
std::string to_text(const Experiment& experiment, const Comparison& comparison);

}  // namespace copus
