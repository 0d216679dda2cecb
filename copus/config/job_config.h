// The settings of a job that decisions about batch and layout depend on, whichever program trains the job.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "copus/base/named_values.h"
#include "copus/config/policy_kind.h"
#include "copus/description/muon.h"
#include "copus/description/optimizer_kind.h"
#include "copus/description/parallel_strategy.h"

namespace copus {

// named_values lists the names of an enumeration's values in configuration files.
enum class LearningRateSchedule { constant, cosine, wsd };
template <>
inline constexpr auto named_values<LearningRateSchedule> =
    std::to_array<NamedValue<LearningRateSchedule>>({{LearningRateSchedule::constant, "constant"},
                                                     {LearningRateSchedule::cosine, "cosine"},
                                                     {LearningRateSchedule::wsd, "wsd"}});

// The phase of the learning-rate schedule. The cosine schedule has no separate decay: all of it after the warm-up is
// `main`.
enum class SchedulePhase { warm_up, main, decay };
template <>
inline constexpr auto named_values<SchedulePhase> = std::to_array<NamedValue<SchedulePhase>>(
    {{SchedulePhase::warm_up, "warm-up"}, {SchedulePhase::main, "main"}, {SchedulePhase::decay, "decay"}});

// How the learning rate grows with the batch: with its square root, linearly, or not at all.
enum class BatchScaling { square_root, linear, none };
template <>
inline constexpr auto named_values<BatchScaling> = std::to_array<NamedValue<BatchScaling>>(
    {{BatchScaling::square_root, "sqrt"}, {BatchScaling::linear, "linear"}, {BatchScaling::none, "none"}});

// What a run saves if time and tokens conflict. automatic: tokens if a number of tokens limits the run, otherwise time.
enum class Objective { automatic, time, tokens };
template <>
inline constexpr auto named_values<Objective> = std::to_array<NamedValue<Objective>>(
    {{Objective::automatic, "auto"}, {Objective::time, "time"}, {Objective::tokens, "tokens"}});

// The settings of [train] about steps and the length of the job.
struct TrainConfig {
  int64_t sequence_length = 512;
  int64_t global_batch = 32;  // sequences per optimizer step
  int64_t micro_batch = 8;    // sequences per forward and backward pass
  int64_t max_steps = 0;      // the run ends at the first of the three limits that is set (> 0)
  int64_t step_batch = 0;     // max_steps counts steps of this batch, in sequences; 0: global_batch
  int64_t max_tokens = 0;
  double max_seconds = 0;  // training time in s without evaluation and checkpoints; the learning rate decays over it
  double clip_norm = 1.0;  // 0: no clipping
  bool operator==(const TrainConfig&) const = default;
};

// Section [optimizer].
struct OptimizerConfig {
  OptimizerKind kind = OptimizerKind::adamw;
  double lr = 1e-3;
  double min_lr_ratio = 0.1;  // final learning rate / lr
  double beta1 = 0.9;
  double beta2 = 0.95;
  double epsilon = 1e-8;
  double weight_decay = 0.1;
  LearningRateSchedule schedule = LearningRateSchedule::cosine;
  double warmup_tokens = 0;   // a value below 1 is a fraction of the run
  double decay_tokens = 0.2;  // length of wsd's final decay; a value below 1 is a fraction of the run
  BatchScaling batch_scaling = BatchScaling::square_root;
  int64_t reference_batch = 0;  // the batch for which lr is given, in sequences; 0: train.global_batch
  // Whether these settings also scale with the batch, from reference_batch on (statistics/learning_rate_scaling.h).
  bool scale_beta2 = false;
  bool scale_weight_decay = false;
  MuonSettings muon = {};
  bool operator==(const OptimizerConfig&) const = default;
};

// A critical batch, measured by branches of a run. Amounts are in tokens, so they also apply to runs with another
// sequence length.
struct MeasuredCriticalBatch {
  double tokens = 1;          // tokens consumed when it was measured
  double noise_scale = 1;     // the run's noise scale at that point
  double critical_batch = 1;  // the measured value
  double deviation = 1;       // standard deviation of log(critical_batch)
  bool operator==(const MeasuredCriticalBatch&) const = default;
};

// Section [noise_scale].
struct NoiseScaleConfig {
  bool enabled = true;
  double window_samples = 2048;  // a step's weight in the averages is 1/e after this many samples, at least 32 steps
  int64_t split_interval = 8;    // steps between splits of a step's only micro-batch in two, to measure noise
  int64_t dual_interval = 0;     // steps between measurements of noise in dual norms; 0: never
  double calibration = 2.0;      // critical batch / noise scale, before any measurement or bound
  std::vector<MeasuredCriticalBatch> critical_batches = {};  // if not empty, they replace `calibration`
  double critical_updates = 0;  // updates, in any batch, that a run needs to get as far again; 0: no bound
  bool operator==(const NoiseScaleConfig&) const = default;
};

// Section [adapt].
struct AdaptConfig {
  PolicyKind policy = PolicyKind::none;
  bool advise = false;  // whether decisions are logged but not carried out
  // Candidates may have any parallel degrees. Each other option takes the values in its list; if the list is empty, the
  // option keeps its initial value. Empty lists of global batches or micro-batches stand for powers of two
  // (orchestrator/predictions/candidates.h).
  std::vector<int64_t> global_batches;
  std::vector<int64_t> micro_batches;
  std::vector<PipelineSchedule> schedules;
  std::vector<int64_t> virtual_stages;
  std::vector<Recompute> recomputes;
  std::vector<bool> sequence_parallel;
  std::vector<int64_t> zero_stages;
  int64_t max_tensor_parallel = 0;  // 0: the number of ranks per node
  double alpha = 0;                 // exponent of the learning rate's factor in Goodput; 0: plain Goodput
  Objective objective = Objective::automatic;
  double least_efficiency = 1;     // to save tokens: least worth of a sample relative to one in train.global_batch
  double relayout_threshold = 0;   // least relative gain of Goodput for a re-layout, however much time it saves
  double batch_threshold = 0;      // least relative gain of Goodput for a change of batch or micro-batch alone
  int64_t interval_samples = 512;  // samples between decisions, or a sixteenth of the run if that is less
  int64_t dwell_samples = 2048;    // least samples between changes of batch; at most 1/4 of the run so far
  int64_t dwell_steps = 32;        // least steps between changes of batch; at most 1/4 of the run
  double dwell_pauses = 3;         // least time from a switch to a trial of a layout, in expected pauses of the trial
  int64_t most_relayouts = 6;      // for copus and oracle: since the beginning, or since ranks or speeds changed
  double loss_contract = 0.01;     // for copus and oracle: most nats that a larger batch may add to the forecast loss
  double explore_budget = 0.01;    // for copus: fraction of the run's time for branches that measure the critical batch
  // The phases of the learning-rate schedule in which only open-loop policies may change the batch.
  std::vector<SchedulePhase> hold_in = {SchedulePhase::warm_up, SchedulePhase::decay};
  std::string schedule;             // for steps: batches by consumed samples or tokens, "0:768 250B:1536"
  double late_switch_share = 0.75;  // for late_switch: the fraction of the run before the switch
  int64_t late_switch_batch = 0;    // for late_switch: the batch after the switch; 0: not given
  // For the policies norm_test, ddp_norm and fsdp_norm: the allowed relative error of the gradient. The next field, the
  // number of steps between tests, is only for ddp_norm and fsdp_norm.
  double norm_test_eta = 0.7;
  int64_t norm_test_interval = 1;
  std::string file;     // input file of oracle and script
  bool verify = false;  // whether to compare the whole state and its copies before and after every move
  bool operator==(const AdaptConfig&) const = default;
};

// The settings on which decisions depend, common to both kinds of jobs.
struct JobConfig {
  TrainConfig train;
  OptimizerConfig optimizer;
  NoiseScaleConfig noise_scale;
  ParallelStrategy parallel;  // [parallel], and train.recompute
  AdaptConfig adapt;
  bool operator==(const JobConfig&) const = default;
};

// The configuration of a job that another program trains. Copus measures it and advises on its batch; its model, data
// and cluster are unknown.
struct AdvisedConfig : JobConfig {
  bool operator==(const AdvisedConfig&) const = default;
};

// Parses the configuration of a job that another program trains. Like parse_run_config (run_config.h), but also throws
// UserError if adapt.advise is not set.
AdvisedConfig parse_advised_config(std::string_view toml_text, const std::string& source,
                                   const std::vector<std::string>& overrides = {});

// Writes every key as TOML, which parse_advised_config reads back to an equal value.
std::string to_toml(const AdvisedConfig& config);

// Explains why the job's batches rule out a configuration; empty if they do not.
std::optional<std::string> infeasible_reason(const AdvisedConfig& config, const Configuration& configuration);

// Returns the initial configuration of the job.
Configuration configuration_of(const JobConfig& config);

// Returns the batch for which optimizer.lr is given, in sequences.
int64_t reference_batch_of(const JobConfig& config);

// Returns the number of tokens at which max_steps or max_tokens, whichever is first, ends the run; 0 if neither is set.
// The step that reaches the limit is completed.
int64_t limit_in_tokens(const TrainConfig& train);

// Returns whether the job saves tokens rather than time (adapt.objective).
bool spares_tokens(const JobConfig& config);

}  // namespace copus
