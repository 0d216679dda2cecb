// The record of one training step, which run.jsonl keeps, and the rules that follow from it.
#pragma once

#include <cmath>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "copus/config/run_config.h"
#include "copus/statistics/noise_scale.h"

namespace copus {

// The held-out loss of one source.
struct SourceLoss {
  std::string source;
  double loss = 0;  // nats per token
  bool operator==(const SourceLoss&) const = default;
};

// Of more held-out sources, the log has no loss of each.
inline constexpr size_t most_logged_sources = 256;

// What an evaluation found, in nats per token.
struct HeldOutLoss {
  double mean = 0;                       // by the weights of the sources
  std::vector<SourceLoss> sources = {};  // of those that were read; empty where there is one, or more than are logged
};

// A step's record. The members' names are the JSON field names, which other tools rely on. Values that are not known
// (an empty optional) and numbers that are not finite are written as JSON null.
struct StepRecord {
  int64_t step = 0;              // optimizer steps finished, this one included
  int64_t consumed_samples = 0;  // sequences consumed so far, this step's included
  int64_t consumed_tokens = 0;   // tokens consumed so far, this step's included
  // Tokens of this step that carry loss, whose mean it is. Where there are none there is no loss and no update; empty
  // where another program trains and does not tell.
  std::optional<int64_t> loss_tokens;
  double loss = 0;  // mean training loss of this step, nats per token; not finite on a skipped step and without tokens
  double lr = 0;    // NaN where another program trains and does not tell
  std::optional<double> rate_factor;   // part of lr: its factor for the batch, that of the ramp left out
  std::optional<SchedulePhase> phase;  // of the schedule of lr; empty where another program trains
  double grad_norm = 0;                // global norm before clipping
  std::optional<bool> clipped;         // whether the update was scaled down; empty where there was none
  double step_seconds = 0;
  std::optional<double> switch_seconds;          // pause before the step, to change the run's configuration
  std::optional<double> predicted_step_seconds;  // predicted before the step, corrected by the steps before it
  double tokens_per_second = 0;
  ParallelStrategy strategy;
  int64_t global_batch = 0;           // sequences
  int64_t micro_batch = 0;            // sequences
  std::optional<double> small_batch;  // sequences of the smaller batch whose gradient norms this step has measured
  std::optional<double> small_batch_squared_norm;
  std::optional<double> noise_scale;  // in samples, with the ends of its 95 % interval; while |G|^2 is not significant
  std::optional<double> noise_scale_low;  // the lower end alone is known
  std::optional<double> noise_scale_high;
  std::optional<double> noise_scale_tokens;
  std::optional<double> critical_batch;          // in samples
  std::optional<double> statistical_efficiency;  // of global_batch, relative to a batch of one sample; in (0, 1]
  std::optional<double> goodput;                 // samples/s, each worth as much as one in a batch of one
  int64_t skipped_samples = 0;                   // sequences of skipped steps so far
  std::optional<double> held_out_loss;           // nats per token; on evaluation steps only
  std::vector<SourceLoss> held_out_losses;       // of the sources of held_out_loss, where there are several
  double elapsed_seconds = 0;                    // training time so far, evaluation and checkpoints not counted
  // Of the run by the limits that it had then: the training time that was left at the pace so far, by the nearest
  // limit, and the share that was done, as the learning rate's schedule counts it. Empty where another program trains
  // and does not tell its length.
  std::optional<double> seconds_left, share_done;

  // Tells whether the step had nothing to learn from: none of its tokens carries loss.
  bool lacks_loss() const { return loss_tokens == 0; }
  // Tells whether the step changed no weight, because its loss or gradient was not finite. A step that says whether its
  // update was scaled down had one: another program that trains may not tell its loss.
  bool skipped() const { return !lacks_loss() && !clipped && (!std::isfinite(loss) || !std::isfinite(grad_norm)); }
};

// Adds to a step's record what the averages after it tell: noise scale, critical batch, statistical efficiency,
// Goodput.
void add_noise_scale(const JobConfig& config, const NoiseAverage& average, StepRecord& record);

// Tells whether the held-out loss is evaluated after the step: every evaluate.interval steps, and where the consumed
// tokens have reached another multiple of evaluate.interval_tokens.
bool is_evaluation_due(const StepRecord& record, const RunConfig& config);

// Seconds of training left until the first of a run's limits, at the pace so far; infinite where no limit is known.
double seconds_left(const TrainConfig& limits, int64_t consumed_tokens, double elapsed_seconds);

// The share of the run that is done, by the limit that is nearest; at most 1, and 0 where no limit is known.
double share_done(const TrainConfig& limits, int64_t consumed_tokens, double elapsed_seconds);

}  // namespace copus
