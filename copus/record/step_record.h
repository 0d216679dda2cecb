// The record of one training step, as written to run.jsonl, and the rules that depend on it.
#pragma once

#include <cmath>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "copus/config/run_config.h"
#include "copus/statistics/dual_noise.h"
#include "copus/statistics/noise_scale.h"

namespace copus {

// The held-out loss of one source.
struct SourceLoss {
  std::string source;
  double loss = 0;  // nats per token
  bool operator==(const SourceLoss&) const = default;
};

// If there are more held-out sources than this, the log does not list a loss for each source.
inline constexpr size_t most_logged_sources = 256;

// The result of an evaluation, in nats per token.
struct HeldOutLoss {
  double mean = 0;                       // weighted by the sources' weights
  std::vector<SourceLoss> sources = {};  // of the evaluated sources; empty if there is one, or too many to log
};

// A step's record. The members' names are the JSON field names, on which other tools rely. Unknown values (an empty
// optional) and non-finite numbers are written as JSON null.
struct StepRecord {
  int64_t step = 0;              // optimizer steps finished, including this one
  int64_t consumed_samples = 0;  // sequences consumed so far, including this step's
  int64_t consumed_tokens = 0;   // tokens consumed so far, including this step's
  // Number of tokens of this step that have a loss; `loss` is the mean over these tokens. With 0 there is no loss and
  // no update. Empty if another program trains and does not report the number.
  std::optional<int64_t> loss_tokens;
  double loss = 0;  // mean training loss of this step, nats per token; not finite if skipped or without tokens
  double lr = 0;    // NaN if another program trains and does not report it
  std::optional<double> rate_factor;   // the part of lr that depends on the batch, without the ramp
  std::optional<SchedulePhase> phase;  // phase of the schedule of lr; empty if another program trains
  double grad_norm = 0;                // global norm before clipping
  std::optional<bool> clipped;         // whether clipping scaled the update; empty without an update
  double step_seconds = 0;
  std::optional<double> switch_seconds;          // pause before the step for changing the configuration
  std::optional<double> predicted_step_seconds;  // predicted before the step, corrected by earlier steps
  double tokens_per_second = 0;
  ParallelStrategy strategy;
  int64_t global_batch = 0;           // sequences
  int64_t micro_batch = 0;            // sequences
  std::optional<double> small_batch;  // sequences of the smaller batches whose gradient norms this step measured
  std::optional<double> small_batch_squared_norm;
  std::optional<double> noise_scale;      // in samples, and the ends of its 95 % interval; while
  std::optional<double> noise_scale_low;  // |G|^2 is not significant, only the lower end is known
  std::optional<double> noise_scale_high;
  std::optional<double> noise_scale_tokens;
  // The same in the norms of sign descent, of Muon and of AdamW (statistics/dual_noise.h), on steps that measure them.
  std::optional<double> sign_noise_scale, sign_noise_scale_low, sign_noise_scale_high;
  std::optional<double> spectral_noise_scale, spectral_noise_scale_low, spectral_noise_scale_high;
  std::optional<double> preconditioned_noise_scale, preconditioned_noise_scale_low, preconditioned_noise_scale_high;
  std::optional<double> critical_batch;          // in samples
  std::optional<double> statistical_efficiency;  // of global_batch, relative to a batch of one sample; in (0, 1]
  std::optional<double> goodput;                 // samples/s; one is the progress of a sample in a batch of one
  int64_t skipped_samples = 0;                   // sequences of skipped steps so far
  std::optional<double> held_out_loss;           // nats per token; on evaluation steps only
  std::vector<SourceLoss> held_out_losses;       // one per source of held_out_loss, if there are several
  double elapsed_seconds = 0;                    // training time so far, without evaluation and checkpoints
  // `seconds_left` is the remaining training time until the nearest limit, at the pace so far without pauses.
  // `share_done` is the completed fraction of the run, as the learning rate's schedule counts it. Both follow from the
  // limits that the run had at this step. Empty if another program trains and does not report its length.
  std::optional<double> seconds_left, share_done;

  // Returns whether the step had nothing to learn from: none of its tokens has a loss.
  bool lacks_loss() const { return loss_tokens == 0; }
  // Returns whether the step changed no weight because its loss or gradient norm was not finite. If `clipped` is set,
  // the step made an update even if its loss is missing: another program that trains may not report its loss.
  bool skipped() const { return !lacks_loss() && !clipped && (!std::isfinite(loss) || !std::isfinite(grad_norm)); }
};

// Sets the noise scale, critical batch, statistical efficiency and Goodput in a step's record, from the averages after
// the step.
void add_noise_scale(const JobConfig& config, const NoiseAverage& average, StepRecord& record);

// Adds the noise scales in dual norms to the record of a step that measured them.
void add_dual_noise(const DualNoiseAverage& sign, const DualNoiseAverage& spectral,
                    const DualNoiseAverage& preconditioned, StepRecord& record);

// Returns whether the held-out loss is evaluated after the step. It is evaluated every evaluate.interval steps, and
// whenever the consumed tokens pass a multiple of evaluate.interval_tokens.
bool is_evaluation_due(const StepRecord& record, const RunConfig& config);

// Seconds of training left until the first of a run's limits, at the pace so far without pauses; infinite if no limit
// is known. `paused_seconds` is the part of elapsed_seconds that pauses took.
double seconds_left(const TrainConfig& limits, int64_t consumed_tokens, double elapsed_seconds, double paused_seconds);

// The completed fraction of the run, by its nearest limit: at most 1, and 0 if no limit is known.
double share_done(const TrainConfig& limits, int64_t consumed_tokens, double elapsed_seconds);

}  // namespace copus
