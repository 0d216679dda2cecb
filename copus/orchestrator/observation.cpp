#include "copus/orchestrator/observation.h"

namespace copus {

Observation observation_of(const StepRecord& record) {
  return {.step = record.step,
          .consumed_samples = record.consumed_samples,
          .loss = record.loss,
          .grad_norm = record.grad_norm,
          .step_seconds = record.step_seconds,
          .elapsed_seconds = record.elapsed_seconds,
          .learning_rate = record.lr,
          .phase = record.phase,
          .clipped = record.clipped,
          .small_batch = record.small_batch,
          .small_batch_squared_norm = record.small_batch_squared_norm,
          .noise_scale = record.noise_scale,
          .noise_scale_low = record.noise_scale_low,
          .noise_scale_high = record.noise_scale_high,
          .seconds_left = record.seconds_left.value_or(std::numeric_limits<double>::infinity()),
          .share_done = record.share_done};
}

}  // namespace copus
