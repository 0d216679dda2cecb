// Simulated runs for tests: candidates with affine step times, a made-up noise scale, and a policy that is asked as by
// a run's controller, and obeyed at once.
#pragma once

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <memory>
#include <random>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "copus/base/testing/test_support.h"
#include "copus/orchestrator/policies/policy.h"
#include "copus/statistics/efficiency.h"
#include "copus/statistics/noise_scale.h"

namespace copus::policy_test {

inline ParallelStrategy layout(int64_t d, int64_t t, int64_t p) {
  return {.data_parallel = d, .tensor_parallel = t, .pipeline_parallel = p};
}

inline const ParallelStrategy pipeline = layout(1, 2, 2), data = layout(4, 1, 1);

// Step time t(B) = fixed + each * B seconds.
struct Affine {
  double fixed, each;
  double seconds(int64_t batch) const { return fixed + each * static_cast<double>(batch); }
};

inline Candidate candidate(const ParallelStrategy& strategy, int64_t batch, double seconds, double deviation = 0.01) {
  return {{strategy, batch, 1}, seconds, deviation, 10, true};
}

inline std::vector<Candidate> affine_candidates(const ParallelStrategy& strategy, const std::vector<int64_t>& batches,
                                                const Affine& time) {
  std::vector<Candidate> candidates;
  for (const int64_t batch : batches) candidates.push_back(candidate(strategy, batch, time.seconds(batch)));
  return candidates;
}

inline std::vector<int64_t> powers_of_two(int64_t first, int64_t last) {
  std::vector<int64_t> powers;
  for (int64_t power = first; power <= last; power *= 2) powers.push_back(power);
  return powers;
}

inline std::vector<int64_t> all_from_to(int64_t first, int64_t last) {
  std::vector<int64_t> all;
  for (int64_t batch = first; batch <= last; ++batch) all.push_back(batch);
  return all;
}

inline std::vector<Candidate> both(std::vector<Candidate> some, const std::vector<Candidate>& others) {
  some.insert(some.end(), others.begin(), others.end());
  return some;
}

// Two layouts: the pipeline is faster at batches below 80, data parallelism above.
inline std::vector<Candidate> two_layouts(int64_t smallest_batch, int64_t largest_batch) {
  return both(affine_candidates(pipeline, powers_of_two(smallest_batch, largest_batch), {8, 1}),
              affine_candidates(data, powers_of_two(smallest_batch, largest_batch), {40, 0.6}));
}

// A run with B_c = 2 phi, however few updates it has made.
inline RunConfig run_config(PolicyKind policy, int64_t batch) {
  RunConfig config;
  config.noise_scale.calibration = 2;
  config.noise_scale.critical_updates = 0;
  config.adapt.policy = policy;
  config.train.global_batch = batch;
  config.train.micro_batch = 1;
  return config;
}

inline RunConfig copus_config(int64_t batch) { return run_config(PolicyKind::copus, batch); }

inline std::string failure(const RunConfig& config, std::string_view text = {}) {
  return user_error([&] { make_policy(config, text); });
}

inline void set_noise(Observation& observation, double value, double low, double high) {
  observation.noise_scale = value;
  observation.noise_scale_low = low;
  observation.noise_scale_high = high;
}
inline void set_noise(Observation& observation, double value) { set_noise(observation, value, value, value); }

// One decision, long after the dwell.
struct Question {
  std::vector<Candidate> candidates;
  Configuration current;
  Observation latest;
  double elapsed_seconds = 1'000'000;
  double relayout_seconds = 0;
  std::vector<std::pair<ParallelStrategy, double>> other_pauses = {};  // of moves to these strategies, in seconds
  int64_t samples_since_switch = 1'000'000;
  double seconds_since_switch = 1'000'000;
  bool holds_batch = false;

  // Asks the policy after the learning rate has long followed the critical batch.
  Choice ask(Policy& policy, double calibration = 2) const {
    Observation seen = latest;
    seen.elapsed_seconds = elapsed_seconds;
    if (seen.consumed_samples == 0) seen.consumed_samples = samples_since_switch;
    policy.observe(seen, current);
    const NoiseBelief noise = policy.belief(seen);
    const double at_least = noise.is_bounded() ? 0 : static_cast<double>(current.global_batch);
    const double rate_cap = std::max(at_least, critical_batch({.calibration = calibration}, noise.value, 0));
    return policy.choose({seen, current, candidates, samples_since_switch, seconds_since_switch, rate_cap, holds_batch,
                          [this](const ParallelStrategy& target) { return pause_to(target); }});
  }
  double pause_to(const ParallelStrategy& target) const {
    for (const auto& [strategy, seconds] : other_pauses) {
      if (strategy == target) return seconds;
    }
    return relayout_seconds;
  }
  Choice ask(const RunConfig& config) const { return ask(*make_policy(config), config.noise_scale.calibration); }
};

struct Move {
  int64_t after_step = 0;
  int64_t consumed_samples = 0;
  Configuration from, to;
  Choice choice;
  bool noise_was_bounded = false;
};

// Fills in the noise that a step in this configuration measures.
using Noise = std::function<void(Observation&, const Configuration&)>;

class PaperRun {
 public:
  PaperRun(const RunConfig& config, std::vector<Candidate> candidates, const Configuration& initial,
           std::string_view file_text = {})
      : config_(config),
        candidates_(std::move(candidates)),
        policy_(make_policy(config, file_text)),
        current_(initial),
        rate_cap_(initial_rate_cap(config, initial.global_batch)) {}

  const Configuration& current() const { return current_; }
  const std::vector<Move>& moves() const { return moves_; }

  // Runs until `samples` samples are consumed.
  void run_to(int64_t samples, const Noise& noise) {
    while (latest_.consumed_samples < samples) {
      Observation now;
      now.step = latest_.step + 1;
      now.consumed_samples = latest_.consumed_samples + current_.global_batch;
      now.elapsed_seconds = latest_.elapsed_seconds + step_seconds();
      noise(now, current_);
      latest_ = now;
      policy_->observe(now, current_);
      if (now.consumed_samples - decided_at_ >= config_.adapt.interval_samples || policy_->is_due(now, current_))
        decide();
    }
  }

 private:
  void decide() {
    decided_at_ = latest_.consumed_samples;
    rate_cap_ = follow_critical_batch(config_, current_.global_batch, rate_cap_, policy_->belief(latest_),
                                      static_cast<double>(latest_.consumed_samples));
    const Choice choice = policy_->choose({latest_, current_, candidates_, latest_.consumed_samples - switched_at_,
                                           latest_.elapsed_seconds - switched_at_seconds_, rate_cap_, false,
                                           [](const ParallelStrategy&) { return relayout_seconds; }});
    if (!choice.target) return;
    moves_.push_back({latest_.step, latest_.consumed_samples, current_, *choice.target, choice,
                      latest_.noise_scale_high.has_value()});
    current_ = *choice.target;
    switched_at_ = latest_.consumed_samples;
    switched_at_seconds_ = latest_.elapsed_seconds;
  }

  double step_seconds() const {
    const auto now = std::find_if(candidates_.begin(), candidates_.end(),
                                  [&](const Candidate& candidate) { return candidate.configuration == current_; });
    return now->step_seconds;
  }

  static constexpr double relayout_seconds = 0.1;

  RunConfig config_;
  std::vector<Candidate> candidates_;
  std::unique_ptr<Policy> policy_;
  Configuration current_;
  double rate_cap_;
  Observation latest_;
  int64_t decided_at_ = 0, switched_at_ = 0;
  double switched_at_seconds_ = 0;
  std::vector<Move> moves_;
};

// Values of phi as a run's averages see it: the truth times noise whose logarithm is correlated over 2048 samples. The
// 95 % interval is that of the claimed deviation.
class NoisyNoise {
 public:
  NoisyNoise(uint64_t seed, double deviation, double claimed_deviation)
      : random_(seed), deviation_(deviation), claimed_deviation_(claimed_deviation) {}

  void show(Observation& observation, const Configuration& current, double truth) {
    const double kept = std::exp(-static_cast<double>(current.global_batch) / 2048);
    error_ = kept * error_ + std::sqrt(1 - kept * kept) * normal_(random_);
    const double phi = truth * std::exp(deviation_ * error_);
    set_noise(observation, phi, phi * std::exp(-1.96 * claimed_deviation_), phi * std::exp(1.96 * claimed_deviation_));
  }

 private:
  std::mt19937_64 random_;
  std::normal_distribution<double> normal_;
  double deviation_, claimed_deviation_;
  double error_ = 0;
};

// Estimates of phi from gradients of `dimensions` numbers with |G|^2 = 1 and tr(Sigma) = phi, spread evenly, through
// the estimator and the averages that a run uses.
class EstimatedNoise {
 public:
  EstimatedNoise(uint64_t seed, int dimensions) : random_(seed), dimensions_(dimensions) {}

  void show(Observation& observation, const Configuration& current, double truth) {
    const auto batch = static_cast<double>(current.global_batch), small = batch / 2;
    const double each = std::sqrt(truth / dimensions_ / small), mean = 1 / std::sqrt(dimensions_);
    double small_norm = 0, large_norm = 0;
    for (int i = 0; i < dimensions_; ++i) {
      const double first = mean + each * normal_(random_), second = mean + each * normal_(random_);
      small_norm += first * first;
      large_norm += (first + second) * (first + second) / 4;
    }
    average_ = copus::observe(average_, {small, small_norm, batch, large_norm}, {});
    if (const std::optional<NoiseScale> noise = noise_scale(average_)) {
      observation.noise_scale = noise->value;
      observation.noise_scale_low = noise->low;
      observation.noise_scale_high = noise->high;
    }
  }

 private:
  std::mt19937_64 random_;
  std::normal_distribution<double> normal_;
  int dimensions_;
  NoiseAverage average_;
};

// The slope of log y over log x.
inline double fitted_exponent(const std::vector<std::pair<double, double>>& points) {
  double n = 0, x = 0, y = 0, xx = 0, xy = 0;
  for (const auto& [at, value] : points) {
    const double u = std::log(at), v = std::log(value);
    n += 1, x += u, y += v, xx += u * u, xy += u * v;
  }
  return (n * xy - x * y) / (n * xx - x * x);
}

}  // namespace copus::policy_test
