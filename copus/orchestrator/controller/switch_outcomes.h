// Compares the predictions of switches with what the steps after them measure.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <utility>
#include <vector>

#include "copus/config/job_config.h"
#include "copus/orchestrator/observation.h"
#include "copus/orchestrator/state_values.h"
#include "copus/performance/measured/learning.h"

namespace copus {

// The predicted and the measured effect of a switch, once enough steps have run in the new configuration.
struct Realised {
  int64_t decision_step = 0;
  Configuration from, to;
  double predicted_step_seconds = 0, realised_step_seconds = 0;
  double predicted_gain = 0;  // relative gain of Goodput at the decision; NaN if no noise scale was known
  // The gain in Goodput by the measured step seconds of both configurations, at the mean noise scale phi since the
  // switch. NaN if phi was not measured.
  double realised_gain = 0;
  // The loss's decrease per second over the window after the switch, divided by its decrease per second over the window
  // before the switch. Empty if either trend is not significant.
  std::optional<double> progress_ratio = {};
};

// The speed at which the loss falls: the slope of the straight line through its points, by least squares.
struct LossTrend {
  double per_second = 0;  // change of the loss; below 0 if it falls
  double error = 0;       // one standard error of per_second
  int64_t steps = 0;
  // Whether the loss falls, at a confidence of 97.5 %.
  bool is_significant() const;
};

struct LossPoint {
  double elapsed_seconds, loss;
};
// Fits the trend to at least three points, of at least two different times.
LossTrend loss_trend(const std::vector<LossPoint>& points);

class SwitchOutcomes {
 public:
  explicit SwitchOutcomes(JobConfig config) : config_(std::move(config)) {}

  struct Promise {
    Realised switched;  // the prediction; nothing is realised yet
    double from_step_seconds = 0;
    double from_rate_factor = 1, to_rate_factor = 1;  // on the learning rate, before and after the switch
    void visit_state(StateValues& values) { values(switched, from_step_seconds, from_rate_factor, to_rate_factor); }
  };

  // As Policy::learn.
  void learn(const std::vector<MeasuredCriticalBatch>& critical_batches) {
    config_.noise_scale.critical_batches = critical_batches;
  }

  // Adds a step that was not skipped. `counts` is false in a warm-up.
  void observe(const Observation& observation, bool counts);
  void moved(const Promise& promise, int64_t consumed_samples, const Knowledge& knowledge);
  // Records that the configuration has changed without a switch. The outcome of the latest switch is then taken from
  // the steps so far, or stays unknown if these are too few.
  void interrupted(const Knowledge& knowledge);
  // Whether there is a complete outcome that was not taken yet.
  bool is_due() const;
  std::vector<Realised> take(const Knowledge& knowledge);

  void visit_state(StateValues& values) {
    values(open_, moved_at_, consumed_samples_, losses_, before_, step_seconds_, noise_sum_, noise_count_, concluded_);
  }

 private:
  void conclude(const Knowledge& knowledge);
  bool has_enough_steps() const;
  bool is_complete() const;

  JobConfig config_;
  std::optional<Promise> open_;  // the latest switch, until it is concluded
  int64_t moved_at_ = 0;         // in consumed samples
  int64_t consumed_samples_ = 0;
  std::deque<LossPoint> losses_;      // latest ones of this configuration
  std::vector<LossPoint> before_;     // of the previous configuration
  std::vector<double> step_seconds_;  // of the measured steps
  double noise_sum_ = 0;
  int64_t noise_count_ = 0;
  std::vector<Realised> concluded_;
};

}  // namespace copus
