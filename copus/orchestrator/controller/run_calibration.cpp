#include "copus/orchestrator/controller/run_calibration.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "copus/base/error.h"
#include "copus/base/text/units.h"

namespace copus {

namespace {

constexpr int64_t most_calibrations = 3;
constexpr double first_share = 0.01, growth_of_shares = 4, last_share = 0.5;
constexpr int64_t most_repetitions = 4;

constexpr int64_t multiple = 8;
// Updates of a branch in the larger batch, as in bench/efficiency/sandwich.md.
constexpr int64_t updates = 24;
// Numbers of samples of the branches in the run's batch (the rungs of the ladder), in eighths of a branch in the larger
// batch. The highest rung has more samples than that branch, so that its loss lies within the ladder even if noise
// makes the larger batch appear more efficient.
constexpr std::array<int64_t, 5> rungs = {1, 2, 4, 8, 12};
constexpr int64_t eighth = 8;
// The larger batch trains at the square-root rate, whatever optimizer.batch_scaling says: of three exponents only this
// one predicted the critical batch of whole runs (bench/efficiency/sandwich.md).
constexpr double rate_exponent = 0.5;

// Evaluating a sequence takes the forward pass alone, a third of training on it.
constexpr double evaluation_cost = 1.0 / 3;

int64_t samples_of_branch(int64_t batch) { return updates * multiple * batch; }

}  // namespace

int64_t branch_batch_of(int64_t batch) { return multiple * batch; }

std::vector<BranchOutcome> branches_of(const CalibrationRequest& request) {
  std::vector<BranchOutcome> branches;
  const int64_t samples = samples_of_branch(request.batch);
  const auto add = [&](int64_t batch, double exponent, int64_t length, int64_t repetition) {
    branches.push_back({.batch = static_cast<double>(batch),
                        .rate_exponent = exponent,
                        .samples = static_cast<double>(length),
                        .repetition = repetition});
  };
  for (int64_t repetition = 0; repetition < request.repetitions; ++repetition) {
    for (const int64_t rung : rungs) add(request.batch, 0, samples * rung / eighth, repetition);
    add(branch_batch_of(request.batch), rate_exponent, samples, repetition);
  }
  return branches;
}

double cost_of(const CalibrationRequest& request) {
  double samples = 0;
  for (const BranchOutcome& branch : branches_of(request)) {
    samples += branch.samples + evaluation_cost * static_cast<double>(branch_held_out_samples);
  }
  return samples;
}

int64_t skipped_samples_of(const CalibrationRequest& request, int64_t repetition) {
  return repetition * samples_of_branch(request.batch) * rungs.back() / eighth;
}

std::string describe(const RunCalibration& calibration) {
  const auto number = [](double value) { return format_number("%.3g", value); };
  const std::string branches = concat("by ", counted(calibration.branches, "branch", "branches"), " in batches of ",
                                      calibration.batch, " and ", calibration.branch_batch);
  if (!calibration.critical_batch) return concat("no critical batch ", branches, ": ", calibration.reason);
  const double factor = std::exp(*calibration.deviation);
  return concat("critical batch ", number(*calibration.critical_batch), " samples (",
                number(*calibration.critical_batch / factor), " to ", number(*calibration.critical_batch * factor),
                ") ", branches);
}

RunCalibrations::RunCalibrations(const JobConfig& config)
    : are_allowed_(config.adapt.policy == PolicyKind::copus && config.noise_scale.critical_batches.empty() &&
                   config.noise_scale.critical_updates == 0 &&
                   std::ranges::find(config.adapt.hold_in, SchedulePhase::main) == config.adapt.hold_in.end()),
      budget_(config.adapt.advise ? 0 : config.adapt.explore_budget),
      sequence_length_(static_cast<double>(config.train.sequence_length)) {}

std::optional<CalibrationRequest> RunCalibrations::due(const Observation& latest, int64_t batch,
                                                       double step_seconds) const {
  if (!are_allowed_ || count_ == most_calibrations || !latest.share_done || latest.phase != SchedulePhase::main ||
      !(latest.noise_scale > 0)) {
    return std::nullopt;
  }
  const double share = *latest.share_done;
  if (share < (count_ == 0 ? first_share : growth_of_shares * latest_share_) || share > last_share) return std::nullopt;
  const double seconds = cost_of({.batch = batch, .repetitions = 1}) * step_seconds / static_cast<double>(batch);
  // The seconds so far include those of earlier calibrations.
  const double budget = budget_ * (latest.elapsed_seconds + latest.seconds_left) - seconds_;
  const double repetitions = std::floor(budget / static_cast<double>(most_calibrations - count_) / seconds);
  if (!std::isfinite(budget) || repetitions < 1) return std::nullopt;
  return CalibrationRequest{.batch = batch,
                            .repetitions = std::min(most_repetitions, static_cast<int64_t>(repetitions)),
                            .most_seconds = budget};
}

void RunCalibrations::add(const RunCalibration& calibration) {
  ++count_;
  seconds_ += calibration.seconds;
  latest_share_ = calibration.share_done.value_or(latest_share_);
  if (!calibration.critical_batch) return;
  critical_batches_.push_back({.tokens = static_cast<double>(calibration.consumed_samples) * sequence_length_,
                               .noise_scale = calibration.noise_scale * sequence_length_,
                               .critical_batch = *calibration.critical_batch * sequence_length_,
                               .deviation = *calibration.deviation});
}

}  // namespace copus
