#include "copus/simulate/simulated_run.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <utility>

#include "copus/base/error.h"
#include "copus/orchestrator/learning_rate/learning_rate.h"
#include "copus/orchestrator/policies/starting_configuration.h"
#include "copus/statistics/noise_scale.h"

namespace copus {

namespace {

// The probability that something outside the run slows a step down.
constexpr double slow_step_probability = 0.005;
constexpr double slow_step_factor = 2;

class SimulatedTraining {
 public:
  SimulatedTraining(const SimulatedWorld& world, const RunConfig& config)
      : world_(world),
        config_(config),
        learning_rate_(config.optimizer, config.train),
        controller_(config, starting_configuration(config), Knowledge()),
        walk_(world.truth),
        draws_(world.seed, "steps"),
        drift_(Draws(world.seed, "drift").normal()),
        target_(world.end.kind == ScenarioEnd::Kind::progress ? world.end.value
                                                              : std::numeric_limits<double>::infinity()) {
    enter(controller_.current());
  }

  SimulatedRun run(const DecisionListener& listener) {
    while (true) {
      const TruthPiece before = walk_.piece();
      if (step()) break;
      seen_ = observation(before);
      const Reaction reaction = controller_.observe(seen_);
      if (listener && reaction.decision) listener({*reaction.decision, walk_.piece(), run_.seconds});
      if (reaction.intent) intent_ = reaction.intent;
      if (const auto request = controller_.calibration_due(); request && calibrate(*request)) break;
      if (intent_ && intent_->commit_after_step == run_.steps && carry_out(*std::exchange(intent_, std::nullopt)))
        break;
    }
    run_.last = current_;
    run_.progress = walk_.progress();
    return run_;
  }

 private:
  // Trains one step, or the part of it that is left until the end of the run. Returns whether the run has ended.
  bool step() {
    const auto batch = static_cast<double>(current_.global_batch);
    double samples = batch;
    const bool ends_by_time = world_.end.kind == ScenarioEnd::Kind::seconds;
    if (ends_by_time) samples *= std::min(1.0, (world_.end.value - run_.seconds) / step_seconds_);
    // A change of the batch costs progress: for stalled_steps_ steps, samples take time but make no progress.
    const double stalled = std::min(samples, stalled_steps_ * batch);
    stalled_steps_ -= stalled / batch;
    run_.seconds += step_seconds_ * stalled / batch;
    const TruthWalk before = walk_;
    const double needed = walk_.advance(samples - stalled, current_.global_batch, target_);
    note_arrivals(before, samples - stalled);
    run_.seconds += step_seconds_ * needed / batch;
    ++run_.steps;
    consumed_samples_ += current_.global_batch;
    return ends_by_time ? samples < batch : walk_.progress() >= target_;
  }

  // Records when the run passed each milestone within the latest step.
  void note_arrivals(const TruthWalk& before, double samples) {
    const std::vector<double>& milestones = world_.milestones;
    while (run_.arrivals.size() < milestones.size() && milestones[run_.arrivals.size()] <= walk_.progress()) {
      TruthWalk again = before;
      const double needed = again.advance(samples, current_.global_batch, milestones[run_.arrivals.size()]);
      const double share = needed / static_cast<double>(current_.global_batch);
      run_.arrivals.push_back({run_.seconds + step_seconds_ * share, static_cast<double>(consumed_samples_) + needed});
    }
  }

  // Makes the observation of the latest step, as the trainer and its log would report it.
  Observation observation(const TruthPiece& truth) {
    Observation seen;
    seen.step = run_.steps;
    seen.consumed_samples = consumed_samples_;
    const bool is_slow = draws_.uniform() < slow_step_probability;
    seen.step_seconds =
        step_seconds_ * std::exp(world_.step_deviation * draws_.normal()) * (is_slow ? slow_step_factor : 1);
    seen.elapsed_seconds = observed_seconds_ += seen.step_seconds;
    seen.seconds_left = seconds_left();
    const RunProgress progress{consumed_samples_ * config_.train.sequence_length, observed_seconds_};
    seen.share_done = learning_rate_.share(progress);
    seen.learning_rate = learning_rate_.at(progress) * controller_.rate_factor();
    seen.phase = learning_rate_.phase(progress);
    seen.loss = 2 + 5 / std::pow(1 + walk_.progress(), 0.2) + 0.02 * draws_.normal();
    add_noise(truth, seen);
    seen.clipped = is_clipped(seen.grad_norm, config_.train.clip_norm);
    return seen;
  }

  // Adds the noise scale at this step's learning rate.
  void add_noise(const TruthPiece& truth, Observation& seen) {
    double rate = controller_.rate_factor();
    if (world_.noise_follows_schedule) rate = seen.learning_rate / config_.optimizer.lr;
    double noise = truth.noise_scale * std::pow(rate, -world_.rate_feedback);
    if (world_.noise_drift > 0) {
      constexpr double memory = 0.999;  // autocorrelation from step to step
      drift_ = memory * drift_ + std::sqrt(1 - memory * memory) * draws_.normal();
      noise *= std::exp(world_.noise_drift * drift_);
    }
    const GradientNoise gradient{truth.squared_gradient, noise * truth.squared_gradient};
    const auto norms = draw_norms(config_, current_, run_.steps, gradient, world_.spread, draws_);
    seen.grad_norm = std::sqrt(gradient.squared_gradient + gradient.trace / static_cast<double>(current_.global_batch));
    if (norms) {
      seen.small_batch = norms->small_batch;
      seen.small_batch_squared_norm = norms->small_squared_norm;
      seen.grad_norm = std::sqrt(norms->large_squared_norm);
      const NoiseWindow window{.samples = config_.noise_scale.window_samples};
      const auto samples = static_cast<double>(consumed_samples_ - measured_samples_);
      average_ = copus::observe(average_, *norms, samples, window);
      measured_samples_ = consumed_samples_;
    }
    if (const std::optional<NoiseScale> scale = noise_scale(average_)) {
      seen.noise_scale = scale->value;
      seen.noise_scale_low = scale->low;
      seen.noise_scale_high = scale->high;
    }
  }

  // Estimates the remaining time as a run's log does: from the remaining tokens and the pace so far without pauses, or
  // from the time limit.
  double seconds_left() const {
    const TrainConfig& limits = config_.train;
    if (limits.max_seconds > 0) return std::max(0.0, limits.max_seconds - observed_seconds_);
    const double tokens = static_cast<double>(consumed_samples_) * static_cast<double>(limits.sequence_length);
    return std::max(0.0, (static_cast<double>(limit_in_tokens(limits)) - tokens) *
                             (observed_seconds_ - run_.pause_seconds) / tokens);
  }

  // Simulates a calibration: draws the critical batch that branches would measure, and adds their time to the run.
  // Returns whether the run ended during that time. All branches are trained, even if they take longer than forecast.
  bool calibrate(const CalibrationRequest& request) {
    const auto reference_batch = static_cast<double>(request.batch);
    const auto larger = static_cast<double>(branch_batch_of(request.batch));
    RunCalibration calibration{.step = run_.steps,
                               .consumed_samples = consumed_samples_,
                               .share_done = seen_.share_done,
                               .batch = request.batch,
                               .branch_batch = branch_batch_of(request.batch),
                               .noise_scale = *seen_.noise_scale,
                               .seconds = cost_of(request) / reference_batch * step_seconds_};
    const double true_logarithm = std::log(walk_.worth(calibration.branch_batch) / walk_.worth(calibration.batch));
    BranchEfficiencies efficiencies;
    const double common_error = world_.branch_error * std::sqrt(0.5) * draws_.normal();
    for (const BranchOutcome& branch : branches_of(request)) {
      ++calibration.branches;
      if (branch.batch == reference_batch) continue;
      const double error = common_error + world_.branch_error * std::sqrt(0.5) * draws_.normal();
      // Losses beyond the ladder show its end.
      const double logarithm = std::clamp(true_logarithm + error, std::log(1.0 / 8), std::log(12.0 / 8));
      efficiencies.values.push_back({.batch = larger,
                                     .rate_exponent = branch.rate_exponent,
                                     .repetition = branch.repetition,
                                     .logarithm = logarithm});
    }
    const double expected = config_.noise_scale.calibration * calibration.noise_scale;
    const auto critical =
        critical_batch_of(efficiencies, larger, reference_batch, request.repetitions, expected, config_.adapt.alpha)
            .value();
    calibration.critical_batch = critical.value;
    calibration.deviation = critical.deviation;
    ++run_.calibrations;
    run_.pause_seconds += calibration.seconds;
    run_.seconds += calibration.seconds;
    observed_seconds_ += calibration.seconds;
    if (world_.end.kind == ScenarioEnd::Kind::seconds && run_.seconds >= world_.end.value) return true;
    controller_.calibrated(calibration);
    return false;
  }

  // Carries out the switch. Returns whether the run ended during the pause.
  bool carry_out(const SwitchIntent& intent) {
    const Configuration& target = intent.configuration;
    SwitchReport report;
    report.after_step = run_.steps;
    report.consumed_samples = consumed_samples_;
    report.from = current_;
    report.to = target;
    if (!world_.seconds.contains(target)) {
      report.outcome = SwitchReport::Outcome::vetoed;
      report.reason = concat(to_string(target), " does not fit into the devices' memory");
      report.is_lack_of_memory = true;
      controller_.report(report);
      return false;
    }
    const bool is_relayout = target.strategy != current_.strategy;
    report.rate_factor = intent.rate_factor;
    report.pause_seconds = is_relayout ? pause_to(target.strategy) : 0;
    if (is_relayout) ++run_.relayouts;
    if (target.global_batch != current_.global_batch) {
      ++run_.batch_changes;
      stalled_steps_ = world_.stalled_steps;
    }
    run_.pause_seconds += report.pause_seconds;
    run_.seconds += report.pause_seconds;
    observed_seconds_ += report.pause_seconds;
    enter(target);
    if (world_.end.kind == ScenarioEnd::Kind::seconds && run_.seconds >= world_.end.value) return true;
    controller_.report(report);
    return false;
  }

  double pause_to(const ParallelStrategy& target) const {
    return world_.pause_between ? world_.pause_between(current_.strategy, target) : world_.pause_seconds;
  }

  void enter(const Configuration& configuration) {
    const auto seconds = world_.seconds.find(configuration);
    COPUS_CHECK(seconds != world_.seconds.end(), to_string(configuration), " is no candidate of this world");
    current_ = configuration;
    step_seconds_ = seconds->second;
  }

  const SimulatedWorld& world_;
  const RunConfig& config_;
  LearningRate learning_rate_;
  Controller controller_;
  TruthWalk walk_;
  Draws draws_;
  double drift_;   // an autocorrelated standard normal deviate
  double target_;  // progress at which the run ends; infinite if it ends after a given time
  Configuration current_;
  double step_seconds_ = 0;
  std::optional<SwitchIntent> intent_;
  NoiseAverage average_;
  int64_t consumed_samples_ = 0;
  int64_t measured_samples_ = 0;  // samples up to the latest step that measured norms
  double observed_seconds_ = 0;
  double stalled_steps_ = 0;
  Observation seen_;  // the latest
  SimulatedRun run_;
};

}  // namespace

SimulatedRun simulate(const SimulatedWorld& world, const RunConfig& config, const DecisionListener& listener) {
  return SimulatedTraining(world, config).run(listener);
}

}  // namespace copus
