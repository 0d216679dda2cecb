#include "copus/train/run/run_branches.h"

#include <cmath>
#include <limits>
#include <memory>

#include "copus/base/error.h"
#include "copus/base/text/units.h"
#include "copus/comm/rank_failure.h"
#include "copus/train/trainer/branch.h"

namespace copus {

namespace {

// The outcome of a branch: its held-out loss (infinite if it diverged) or the reason to stop, and its seconds on the
// run's clock.
struct BranchEnd {
  StopReason stopped = StopReason::none;
  double loss = std::numeric_limits<double>::infinity();
  double seconds = 0;
};

BranchEnd train_branch(const RunConfig& config, const Branch& branch, const Trainer& trunk, const Dataset& dataset,
                       World& world, const StopQuestion& stop) {
  Configuration configuration = trunk.configuration();
  configuration.global_batch = branch.global_batch;
  const TrainingState& state = trunk.state();
  const auto train = [&](Trainer& trainer) -> BranchEnd {
    trainer.branch_from(trunk, branch.skipped_samples);
    const auto end = [&](double loss) {
      return BranchEnd{trainer.stop_reason(), loss, trainer.state().elapsed_seconds - state.elapsed_seconds};
    };
    constexpr double diverged = std::numeric_limits<double>::infinity();
    while (!trainer.finished()) {
      const StepRecord record = trainer.step(stop);
      if (trainer.stop_reason() != StopReason::none || record.skipped()) return end(diverged);
    }
    const std::optional<double> loss = trainer.held_out_loss(stop);
    return end(loss.value_or(diverged));
  };
  auto trainer = std::make_unique<Trainer>(branch_in_layout(config, branch, state.consumed_tokens), configuration,
                                           dataset, trunk.device(), world);
  try {
    return train(*trainer);
  } catch (const RankFailure&) {
    throw;  // this process continues, and needs the branch's memory back
  } catch (...) {
    [[maybe_unused]] const Trainer* kept = trainer.release();  // as in with_trainer()
    throw;
  }
}

}  // namespace

RunCalibration calibration_of(const CalibrationRequest& request, const StepRecord& latest) {
  return {.step = latest.step,
          .consumed_samples = latest.consumed_samples,
          .share_done = latest.share_done,
          .batch = request.batch,
          .branch_batch = branch_batch_of(request.batch),
          .noise_scale = latest.noise_scale.value_or(0)};
}

BranchesEnd train_branches(const RunConfig& config, const CalibrationRequest& request, const StepRecord& latest,
                           const Trainer& trunk, const Dataset& dataset, World& world, const StopQuestion& stop,
                           const std::function<void()>& between_branches) {
  const auto batch = static_cast<double>(request.batch);
  RunCalibration calibration = calibration_of(request, latest);
  if (const auto obstacle = trunk.obstacle_to_branch(calibration.branch_batch)) {
    calibration.reason = obstacle->reason;
    return {.calibration = calibration};
  }
  std::vector<BranchOutcome> outcomes;
  const double begin = world.clock().now();
  double modelled_seconds = 0;
  const auto seconds = [&] {
    double slowest = config.cluster.is_modelled() ? modelled_seconds : world.clock().now() - begin;
    world.everyone().all_reduce(&slowest, 1, DataType::float64, Reduction::maximum);
    return slowest;
  };
  const std::vector<BranchOutcome> branches = branches_of(request);
  StopReason stopped = StopReason::none;
  for (BranchOutcome outcome : branches) {
    between_branches();
    const double factor = std::pow(outcome.batch / batch, outcome.rate_exponent);
    const Branch branch{.global_batch = static_cast<int64_t>(outcome.batch),
                        .learning_rate = latest.lr * factor,
                        .rate_factor = trunk.state().rate_factor * factor,
                        .samples = static_cast<int64_t>(outcome.samples),
                        .skipped_samples = skipped_samples_of(request, outcome.repetition)};
    const BranchEnd end = train_branch(config, branch, trunk, dataset, world, stop);
    stopped = end.stopped;
    if (stopped != StopReason::none) break;
    outcome.loss = end.loss;
    outcomes.push_back(outcome);
    modelled_seconds += end.seconds;
    if (seconds() > request.most_seconds) break;
  }
  trunk.require_groups();
  calibration.branches = std::ssize(outcomes);
  calibration.seconds = seconds();
  if (stopped != StopReason::none) {
    calibration.reason = "the run was interrupted";
    return {.stopped = stopped, .calibration = calibration};
  }
  const int64_t repetitions = calibration.branches / (std::ssize(branches) / request.repetitions);
  if (repetitions == 0) {
    calibration.reason = concat("the branches took longer than the ", format_duration(request.most_seconds),
                                " that were left of adapt.explore_budget");
    return {.calibration = calibration};
  }
  std::erase_if(outcomes, [&](const BranchOutcome& outcome) { return outcome.repetition >= repetitions; });
  calibration.branches = std::ssize(outcomes);
  const BranchEfficiencies efficiencies = branch_efficiencies(outcomes, batch);
  const double expected = config.noise_scale.calibration * calibration.noise_scale;
  const auto critical = critical_batch_of(efficiencies, static_cast<double>(calibration.branch_batch), batch,
                                          repetitions, expected, config.adapt.alpha);
  if (critical) {
    calibration.critical_batch = critical->value;
    calibration.deviation = critical->deviation;
  } else {
    const auto diverged = efficiencies.outside - std::ssize(efficiencies.bounds);
    calibration.reason = concat(diverged, " of ", repetitions,
                                " branches in the larger batch have no loss to compare: they diverged, or branches of ",
                                "the run's batch did");
  }
  return {.calibration = calibration};
}

}  // namespace copus
