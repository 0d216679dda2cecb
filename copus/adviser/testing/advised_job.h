// For tests: a job with an adviser. Its gradients have a known noise scale, and its steps take a + b x micro-batches. A
// step depends only on its number and batch, so that a job can be repeated from any step.
#pragma once

#include <cmath>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "copus/adviser/adviser.h"
#include "copus/statistics/testing/quadratic_loss.h"

namespace copus {

class AdvisedJob {
 public:
  double noise_scale = 1024;
  double seconds_once = 1, seconds_per_micro_batch = 0.25;
  double spread = 0.01;  // relative, of a step's seconds
  uint64_t seed = 1;

  // Two data-parallel ranks with micro-batches of 8.
  static constexpr int64_t least_batch = 16;
  AdviserSettings settings(int64_t batch = 16) const {
    AdviserSettings result;
    result.batch = batch;
    result.reference_batch = least_batch;
    result.micro_batch = 8;
    result.replicas = 2;
    result.sequence_length = 32;
    result.more = {"noise_scale.calibration=1.0", "noise_scale.window_samples=16384"};
    return result;
  }

  double seconds(int64_t batch) const {
    return seconds_once + seconds_per_micro_batch * static_cast<double>(batch) / least_batch;
  }

  // The batch with the highest Goodput: B / (a + b B / B_1) / (1 + B / B_c) is largest at sqrt(B_1 B_c a / b).
  double best_batch() const { return std::sqrt(least_batch * noise_scale * seconds_once / seconds_per_micro_batch); }

  AdvisedStep step(int64_t number, int64_t batch) const {
    std::mt19937_64 random(seed * 1000003 + static_cast<uint64_t>(number) * 4099 + static_cast<uint64_t>(batch));
    AdvisedStep step;
    step.samples = batch;
    step.seconds = seconds(batch) * std::exp(spread * std::normal_distribution<double>()(random));
    step.learning_rate = 1e-3;
    step.loss = 5 - 1e-3 * static_cast<double>(number);
    if (batch == least_batch) {  // one micro-batch per rank: each rank's gradient is a small batch
      const NormObservation norms = QuadraticLoss(20, noise_scale).draw(2, 8, random);
      step.small_batch = 8;
      step.small_squared_norm = norms.small_squared_norm;
      step.gradient_norm = std::sqrt(norms.large_squared_norm);
      return step;
    }
    const auto parts = static_cast<int>(batch / least_batch);
    const NormObservation norms = QuadraticLoss(20, noise_scale).draw(parts, least_batch, random);
    step.small_batch = least_batch;
    step.small_squared_norm = norms.small_squared_norm;
    step.gradient_norm = std::sqrt(norms.large_squared_norm);
    return step;
  }

  // Trains from the adviser's current step on. Changes `batch` when the adviser recommends another one, and returns
  // these recommendations.
  std::vector<Advice> train(Adviser& adviser, int64_t until_step, int64_t batch) const {
    std::vector<Advice> followed;
    while (adviser.steps() < until_step) {
      const std::optional<Advice> advice = adviser.step(step(adviser.steps() + 1, batch));
      if (!advice || advice->batch == batch) continue;
      batch = advice->batch;
      followed.push_back(*advice);
    }
    return followed;
  }
};

}  // namespace copus
