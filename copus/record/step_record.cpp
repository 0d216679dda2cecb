#include "copus/record/step_record.h"

#include <algorithm>
#include <limits>

#include "copus/record/batch_worth.h"
#include "copus/statistics/efficiency.h"

namespace copus {

void add_noise_scale(const JobConfig& config, const NoiseAverage& average, StepRecord& record) {
  const std::optional<NoiseScale> noise = noise_scale(average);
  if (!noise) return;
  record.noise_scale = noise->value;
  record.noise_scale_low = noise->low;
  record.noise_scale_high = noise->high;
  if (!noise->value) return;
  constexpr double reference_batch = 1;
  const auto batch = static_cast<double>(record.global_batch);
  const double critical =
      BatchWorth(config).critical_batch(*noise->value, static_cast<double>(record.consumed_samples));
  record.noise_scale_tokens = *noise->value * static_cast<double>(config.train.sequence_length);
  record.critical_batch = critical;
  record.statistical_efficiency = statistical_efficiency(batch, critical, reference_batch);
  record.goodput = batch / record.step_seconds * *record.statistical_efficiency;
}

void add_dual_noise(const DualNoiseAverage& sign, const DualNoiseAverage& spectral,
                    const DualNoiseAverage& preconditioned, StepRecord& record) {
  using Field = std::optional<double>;
  const auto add = [](const DualNoiseAverage& average, Field& value, Field& low, Field& high) {
    const std::optional<DualNoiseScale> scale = dual_noise_scale(average);
    if (!scale) return;
    value = scale->value;
    low = scale->low;
    high = scale->high;
  };
  add(sign, record.sign_noise_scale, record.sign_noise_scale_low, record.sign_noise_scale_high);
  add(spectral, record.spectral_noise_scale, record.spectral_noise_scale_low, record.spectral_noise_scale_high);
  add(preconditioned, record.preconditioned_noise_scale, record.preconditioned_noise_scale_low,
      record.preconditioned_noise_scale_high);
}

bool is_evaluation_due(const StepRecord& record, const RunConfig& config) {
  const EvaluateConfig& evaluate = config.evaluate;
  if (evaluate.interval > 0 && record.step % evaluate.interval == 0) return true;
  const int64_t before = record.consumed_tokens - record.global_batch * config.train.sequence_length;
  return evaluate.interval_tokens > 0 &&
         record.consumed_tokens / evaluate.interval_tokens > before / evaluate.interval_tokens;
}

double seconds_left(const TrainConfig& limits, int64_t consumed_tokens, double elapsed_seconds, double paused_seconds) {
  double left = std::numeric_limits<double>::infinity();
  const auto limit = static_cast<double>(limit_in_tokens(limits));
  const auto tokens = static_cast<double>(consumed_tokens);
  if (limit > 0 && tokens > 0) left = (limit - tokens) * (elapsed_seconds - paused_seconds) / tokens;
  if (limits.max_seconds > 0) left = std::min(left, limits.max_seconds - elapsed_seconds);
  return std::max(0.0, left);
}

double share_done(const TrainConfig& limits, int64_t consumed_tokens, double elapsed_seconds) {
  const auto limit = static_cast<double>(limit_in_tokens(limits));
  const double by_tokens = limit > 0 ? static_cast<double>(consumed_tokens) / limit : 0;
  const double by_time = limits.max_seconds > 0 ? elapsed_seconds / limits.max_seconds : 0;
  return std::min(1.0, std::max(by_tokens, by_time));
}

}  // namespace copus
