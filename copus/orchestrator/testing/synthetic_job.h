// A job for tests and benchmarks whose steps are not computed, on a cluster whose true step times are known. A
// controller steers it.
#pragma once

#include <cmath>
#include <cstdint>
#include <functional>
#include <optional>
#include <utility>
#include <vector>

#include "copus/base/numbers/mix_bits.h"
#include "copus/orchestrator/controller/controller.h"
#include "copus/orchestrator/predictions/step_time_learner.h"
#include "copus/orchestrator/testing/small_run.h"

namespace copus {

// A configuration for four ranks on two nodes, which decides often, by Goodput.
inline RunConfig adapting_run() {
  RunConfig config = small_run();
  config.train.global_batch = 16;
  config.train.micro_batch = 4;
  config.train.max_tokens = int64_t{1} << 30;
  config.parallel = {.data_parallel = 1, .tensor_parallel = 1, .pipeline_parallel = 2};
  config.parallel.data_parallel = 2;
  config.noise_scale.calibration = 2;
  config.noise_scale.critical_updates = 0;  // the samples are made up
  config.cluster.description.ranks_per_node = 2;
  config.adapt.policy = PolicyKind::copus;
  config.adapt.objective = Objective::time;  // the limit in tokens is never reached
  config.adapt.interval_samples = 128;
  config.adapt.dwell_samples = 512;
  config.adapt.relayout_threshold = 0.02;
  config.adapt.batch_threshold = 0.01;
  return config;
}

class SyntheticJob {
 public:
  static constexpr int64_t warm_up_steps = 40;

  explicit SyntheticJob(const RunConfig& config)
      : config_(config), current_(configuration_of(config)), model_(config, current_, Knowledge()) {}

  // True seconds of a step: those of the step-time model times 1.2, more in a pipeline, and some noise.
  double true_seconds(const Configuration& configuration) const {
    return 1.2 * (configuration.strategy.pipeline_parallel > 1 ? 1.1 : 1) * model_.predict(configuration).total();
  }

  Observation next_step() {
    Observation observation;
    observation.step = ++step_;
    observation.consumed_samples = consumed_samples_ += current_.global_batch;
    observation.step_seconds = true_seconds(current_) * (1 + 0.02 * noise(1));
    observation.elapsed_seconds = elapsed_seconds_ += observation.step_seconds;
    observation.loss = 5 - 1e-4 * static_cast<double>(consumed_samples_) + 0.01 * noise(2);
    observation.grad_norm = 1 + 0.1 * noise(3);
    observation.learning_rate = 1e-3 * (1 + 0.1 * noise(5));
    observation.phase = step_ <= warm_up_steps ? SchedulePhase::warm_up : SchedulePhase::main;
    observation.clipped = is_clipped(observation.grad_norm, config_.train.clip_norm);
    const double phi = 8 + 0.02 * static_cast<double>(consumed_samples_);
    observation.noise_scale = phi * (1 + 0.05 * noise(4));
    observation.noise_scale_low = 0.8 * *observation.noise_scale;
    observation.noise_scale_high = 1.3 * *observation.noise_scale;
    return observation;
  }

  // Makes the announced switch once its boundary is reached.
  std::optional<SwitchReport> switch_if_due() {
    if (!intent_ || intent_->commit_after_step != step_) return std::nullopt;
    const SwitchIntent intent = *std::exchange(intent_, std::nullopt);
    SwitchReport report;
    report.after_step = step_;
    report.consumed_samples = consumed_samples_;
    report.from = current_;
    report.to = current_ = intent.configuration;
    report.rate_factor = intent.rate_factor;
    report.pause_seconds = report.from.strategy == report.to.strategy ? 0 : 0.04;
    elapsed_seconds_ += report.pause_seconds;
    return report;
  }

  // Continues in a configuration for other ranks, after a pause.
  void change_ranks(const RanksChanged& change) {
    intent_.reset();
    current_ = change.to;
    elapsed_seconds_ += change.pause_seconds;
  }

  void expect(const SwitchIntent& intent) { intent_ = intent; }
  const Configuration& current() const { return current_; }
  int64_t step() const { return step_; }

 private:
  // Noise in [-1, 1], a function of the step.
  double noise(uint64_t stream) const {
    return static_cast<double>(mix_bits(static_cast<uint64_t>(step_) * 16 + stream) >> 11) * 0x1p-52 - 1;
  }

  RunConfig config_;
  Configuration current_;
  StepTimeLearner model_;  // only for its predictions
  std::optional<SwitchIntent> intent_;
  int64_t step_ = 0, consumed_samples_ = 0;
  double elapsed_seconds_ = 0;
};

// Decisions and outcomes of a controller in the course of a job.
struct Course {
  std::vector<Decision> decisions;
  std::vector<SwitchReport> switches;
  std::vector<Realised> realised;
};

// Drives job and controller as a run does. `change` may change the observations.
inline void run_steps(
    SyntheticJob& job, Controller& controller, int64_t steps, Course& course,
    const std::function<void(Observation&)>& change = [](Observation&) {}) {
  for (int64_t i = 0; i < steps; ++i) {
    Observation observation = job.next_step();
    change(observation);
    const Reaction reaction = controller.observe(observation);
    if (reaction.decision) course.decisions.push_back(*reaction.decision);
    course.realised.insert(course.realised.end(), reaction.realised.begin(), reaction.realised.end());
    if (reaction.intent) job.expect(*reaction.intent);
    if (const auto report = job.switch_if_due()) {
      controller.report(*report);
      course.switches.push_back(*report);
    }
  }
}

}  // namespace copus
