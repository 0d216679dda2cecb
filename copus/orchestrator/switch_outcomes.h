// What switches brought, measured over the steps after them, against what was promised.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <utility>
#include <vector>

#include "copus/config/run_config.h"
#include "copus/orchestrator/observation.h"
#include "copus/performance/learning.h"

namespace copus {

// What a switch was predicted to bring and what it brought, once enough steps have run in the new configuration.
struct Realised {
  int64_t decision_step = 0;
  Configuration from, to;
  double predicted_step_seconds = 0, realised_step_seconds = 0;
  double predicted_gain = 0;  // of Goodput, relative, when it was decided; NaN where no noise scale was known
  // With both sides' measured step seconds, at the phi measured since; NaN where none is known.
  double realised_gain = 0;
  // Loss decrease per second over the window after the switch, relative to the trend before it; empty where the trend
  // is not significant.
  std::optional<double> progress_ratio = {};
};

// How quickly the loss falls: the straight line through its points, by least squares.
struct LossTrend {
  double per_second = 0;  // of the loss; below 0 where it falls
  double error = 0;       // one standard error of that
  int64_t steps = 0;
  // Falls, at 97.5 %.
  bool is_significant() const;
};

struct LossPoint {
  double elapsed_seconds, loss;
};
// Of three points at least, at two different times.
LossTrend loss_trend(const std::vector<LossPoint>& points);

class SwitchOutcomes {
 public:
  explicit SwitchOutcomes(RunConfig config) : config_(std::move(config)) {}

  struct Promise {
    Realised switched;  // what was predicted; nothing is realised yet
    double from_step_seconds = 0;
  };

  // A step that was not skipped. `counts`: it is no step of a warm-up.
  void observe(const Observation& observation, bool counts);
  void moved(const Promise& promise, int64_t consumed_samples, const Knowledge& knowledge);
  // Whether something is complete that was not taken yet.
  bool is_due() const;
  std::vector<Realised> take(const Knowledge& knowledge);

 private:
  void conclude(const Knowledge& knowledge);
  bool has_enough_steps() const;
  bool is_complete() const;

  RunConfig config_;
  std::optional<Promise> open_;  // of the latest switch, until it is concluded
  int64_t moved_at_ = 0;         // consumed samples
  int64_t consumed_samples_ = 0;
  std::deque<LossPoint> losses_;      // of this configuration, the latest
  std::vector<LossPoint> before_;     // of the configuration before it
  std::vector<double> step_seconds_;  // that count
  double noise_sum_ = 0;
  int64_t noise_count_ = 0;
  std::vector<Realised> concluded_;
};

}  // namespace copus
