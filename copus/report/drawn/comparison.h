// What the runs of an experiment have shown, per arm: times to held-out losses and losses at the end, compared seed by
// seed with the reference. Knows outcomes of runs, and not how they came about.
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
  bool failed;  // it ended before its time, as a run does that diverges; nothing else is then known
  std::vector<Evaluation> evaluations;
  std::optional<double> final_loss;  // held-out loss of the final weights; empty where it is not finite
};

// Reads the outcome of a run that is done, from its log and summary. Throws UserError where these are damaged.
RunOutcome read_outcome(const std::filesystem::path& run_directory, const std::string& arm, int64_t seed);

// What one arm has brought by one measure: the time to a target, or the loss at the end. Where a single run lacks it,
// `refusal` says which, and no mean is given: one over the other runs would be of the lucky ones.
struct ArmMeasure {
  std::optional<double> target;                        // empty: the loss at the end
  std::string refusal;                                 // empty: it is reported
  std::vector<int64_t> seeds;                          // one item a run, here and in the lists below
  std::vector<std::optional<double>> seconds, tokens;  // to the target
  std::vector<std::optional<double>> losses;           // at the end
  std::optional<double> mean_seconds, mean_tokens;     // geometric means
  std::optional<double> mean_loss;                     // arithmetic mean
  std::optional<PairedDifference> against_reference;   // of log seconds, or of losses
};

struct ArmResult {
  std::string name;                      // of the arm or group
  std::string arm;                       // the arm that ran: of a group the one that was chosen; empty: none could be
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

// Chooses the arm of a group that is fastest on the screening seeds, whose outcomes must all be there: the one with the
// least mean of log seconds to the lowest target that any arm has reached with every seed; of equals the first. Targets
// that some run had reached before its first evaluation are passed over, since nobody knows which arm was faster. Where
// no target is left, it is the one with the least mean of losses at the end.
GroupChoice choose_arm(const Experiment& experiment, const std::string& group, const std::vector<RunOutcome>& outcomes);

// Compares the contenders. `outcomes` holds all screening runs, and all runs of the arms to compare.
Comparison compare(const Experiment& experiment, const std::vector<RunOutcome>& outcomes);

// The comparison as results.json, and as tables for people.
std::string to_json(const Experiment& experiment, const Comparison& comparison);
std::string to_text(const Experiment& experiment, const Comparison& comparison);

}  // namespace copus
