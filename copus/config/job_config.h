// What a decision about batch and layout needs to know of a job, whoever trains it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "copus/base/named_values.h"
#include "copus/description/optimizer_kind.h"
#include "copus/description/parallel_strategy.h"

namespace copus {

// The table below each of these enumerations holds the names of its values in a configuration file.
enum class LearningRateSchedule { constant, cosine, wsd };
template <>
inline constexpr auto named_values<LearningRateSchedule> =
    std::to_array<NamedValue<LearningRateSchedule>>({{LearningRateSchedule::constant, "constant"},
                                                     {LearningRateSchedule::cosine, "cosine"},
                                                     {LearningRateSchedule::wsd, "wsd"}});

// The part of the learning rate's schedule that a step is in. Cosine has no decay of its own at the end: all that
// follows the warm-up is its main part.
enum class SchedulePhase { warm_up, main, decay };
template <>
inline constexpr auto named_values<SchedulePhase> = std::to_array<NamedValue<SchedulePhase>>(
    {{SchedulePhase::warm_up, "warm-up"}, {SchedulePhase::main, "main"}, {SchedulePhase::decay, "decay"}});

// How the learning rate follows the batch: with its square root, in proportion, or not at all.
enum class BatchScaling { square_root, linear, none };
template <>
inline constexpr auto named_values<BatchScaling> = std::to_array<NamedValue<BatchScaling>>(
    {{BatchScaling::square_root, "sqrt"}, {BatchScaling::linear, "linear"}, {BatchScaling::none, "none"}});

// What a run is to spare where progress per second and progress per token disagree. automatic: tokens where their
// number limits the run, time otherwise.
enum class Objective { automatic, time, tokens };
template <>
inline constexpr auto named_values<Objective> = std::to_array<NamedValue<Objective>>(
    {{Objective::automatic, "auto"}, {Objective::time, "time"}, {Objective::tokens, "tokens"}});

// The policy that decides the configuration of a run while it trains.
enum class PolicyKind {
  none,             // nothing is decided or logged
  fixed,            // "static": decisions are logged, and only commands change anything
  static_best,      // likewise, begun in the layout that is fastest at its batch
  copus,            // the configuration with the highest Goodput
  copus_paper,      // the rule of arXiv 2604.26687 as it is published
  cbs_pessimistic,  // the batch follows the critical batch, in the layout that is fastest at the initial batch
  cbs_optimistic,   // likewise in the layout that is fastest at the largest batch
  steps,            // a schedule of batches by consumed samples or tokens (Megatron-LM's step batch size schedule)
  seesaw,           // grows the batch where the schedule would lower the learning rate (arXiv 2510.14717)
  late_switch,      // switches once, late, to a larger batch (arXiv 2602.14208)
  olmo,             // doubles the batch where the critical batch allows it (Merrill et al. 2025, arXiv 2505.23971)
  norm_test,        // the batch grows until the relative error of its gradient is small enough
  ddp_norm,         // likewise as Lau et al. 2024 (arXiv 2412.21124) do it, where ranks have whole gradients
  fsdp_norm,        // likewise where ZeRO cuts the gradients
  cona,             // the next power of two where throughput / (batch + noise scale) rises
  oracle,           // copus with the true noise scale, from a file
  script,           // a file of decisions
};
template <>
inline constexpr auto named_values<PolicyKind> =
    std::to_array<NamedValue<PolicyKind>>({{PolicyKind::none, "none"},
                                           {PolicyKind::fixed, "static"},
                                           {PolicyKind::static_best, "static-best"},
                                           {PolicyKind::copus, "copus"},
                                           {PolicyKind::copus_paper, "copus-paper"},
                                           {PolicyKind::cbs_pessimistic, "cbs-pessimistic"},
                                           {PolicyKind::cbs_optimistic, "cbs-optimistic"},
                                           {PolicyKind::steps, "steps"},
                                           {PolicyKind::seesaw, "seesaw"},
                                           {PolicyKind::late_switch, "late-switch"},
                                           {PolicyKind::olmo, "olmo"},
                                           {PolicyKind::norm_test, "norm-test"},
                                           {PolicyKind::ddp_norm, "ddp-norm"},
                                           {PolicyKind::fsdp_norm, "fsdp-norm"},
                                           {PolicyKind::cona, "cona"},
                                           {PolicyKind::oracle, "oracle"},
                                           {PolicyKind::script, "script"}});

// Tells whether a policy's decisions depend on the measured noise scale.
bool decides_by_noise_scale(PolicyKind policy);
// Whether a policy compares how long steps take, be it for the log alone.
bool compares_step_times(PolicyKind policy);

// Tells whether a policy's switches are settled before the run begins, as a schedule or a script settles them.
bool is_open_loop(PolicyKind policy);

// Section [train], as far as it describes steps and the length of the job.
struct TrainConfig {
  int64_t sequence_length = 512;
  int64_t global_batch = 32;  // sequences per optimizer step
  int64_t micro_batch = 8;    // sequences per forward and backward pass
  int64_t max_steps = 0;      // the run ends at the first of the three limits that is set (> 0)
  int64_t step_batch = 0;     // the batch that max_steps counts in; 0: global_batch
  int64_t max_tokens = 0;
  double max_seconds = 0;  // training time without evaluation and checkpoints; the learning rate decays over it
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
  double warmup_tokens = 0;   // a value below 1 is a share of the run
  double decay_tokens = 0.2;  // length of the final decay of wsd; a value below 1 is a share of the run
  BatchScaling batch_scaling = BatchScaling::square_root;
  int64_t reference_batch = 0;  // the batch that lr is for; 0: train.global_batch
  // Whether these follow the batch as well (statistics/learning_rate_scaling.h), from reference_batch on.
  bool scale_beta2 = false;
  bool scale_weight_decay = false;
  bool operator==(const OptimizerConfig&) const = default;
};

// Section [noise_scale].
struct NoiseScaleConfig {
  bool enabled = true;
  double window_samples = 2048;  // samples after which a step's weight in the averages is 1/e, 32 steps at least
  int64_t split_interval = 8;    // steps from one that is cut in two to the next, where a step has one micro-batch
  double calibration = 2.0;      // critical batch / noise scale, where the number of updates does not limit it
  double critical_updates = 0;   // updates that a run needs to come as far again, in whatever batch; 0: no such limit
  bool operator==(const NoiseScaleConfig&) const = default;
};

// Section [adapt].
struct AdaptConfig {
  PolicyKind policy = PolicyKind::none;
  bool advise = false;  // whether decisions are logged but not carried out
  // The candidates have any parallel degrees. Every other option has one of the values listed here or, where its list
  // is empty, the value with which the run begins. An empty list of global batches stands for powers of two
  // (orchestrator/candidates.h); an empty list of micro-batches for the powers of two.
  std::vector<int64_t> global_batches;
  std::vector<int64_t> micro_batches;
  std::vector<PipelineSchedule> schedules;
  std::vector<int64_t> virtual_stages;
  std::vector<Recompute> recomputes;
  std::vector<bool> sequence_parallel;
  std::vector<int64_t> zero_stages;
  int64_t max_tensor_parallel = 0;  // 0: the ranks of a node
  double alpha = 0;                 // exponent of the learning rate's factor in Goodput; 0: plain Goodput
  Objective objective = Objective::automatic;
  double least_efficiency = 1;     // to spare tokens: least worth of a sample over one in train.global_batch
  double relayout_threshold = 0;   // relative gain of Goodput that a re-layout must bring, whatever time it saves
  double batch_threshold = 0;      // likewise of a change of batch or micro-batch alone
  int64_t interval_samples = 512;  // samples from one decision to the next, or a sixteenth of the run
  int64_t dwell_samples = 2048;    // from one change of the batch to the next, or a quarter of the run so far
  int64_t dwell_steps = 32;        // and of steps, or a quarter of the run
  double dwell_pauses = 3;  // least time from one switch to trying another layout, in expected pauses of the move there
  int64_t most_relayouts = 6;   // for copus and oracle: since the beginning, or since ranks or speeds changed
  double loss_contract = 0.01;  // for copus and oracle: nats that the loss may be above its forecast in a larger batch
  // The phases of the learning rate's schedule in which the batch stays, except by an open-loop policy.
  std::vector<SchedulePhase> hold_in = {SchedulePhase::warm_up, SchedulePhase::decay};
  std::string schedule;             // for steps: "0:768 250B:1536", batches from so many consumed samples or tokens on
  double late_switch_share = 0.75;  // for late_switch: the share of the run after which it switches
  int64_t late_switch_batch = 0;    // for late_switch: the batch that it switches to; 0: not given
  // For norm_test, ddp_norm and fsdp_norm: the relative error of the gradient that is allowed; for the latter two:
  // steps from one test to the next.
  double norm_test_eta = 0.7;
  int64_t norm_test_interval = 1;
  std::string file;     // for oracle and script: their input
  bool verify = false;  // whether the whole state is compared before and after every move, and all copies of it
  bool operator==(const AdaptConfig&) const = default;
};

// What decisions depend on. Everything that serves both kinds of job takes this part of their configurations.
struct JobConfig {
  TrainConfig train;
  OptimizerConfig optimizer;
  NoiseScaleConfig noise_scale;
  ParallelStrategy parallel;  // [parallel], and train.recompute
  AdaptConfig adapt;
  bool operator==(const JobConfig&) const = default;
};

// A job that another program trains: Copus measures it and advises its batch. Nothing is known of its model, its data
// and its cluster.
struct AdvisedConfig : JobConfig {
  bool operator==(const AdvisedConfig&) const = default;
};

// Reads the configuration of a job that another program trains, as parse_run_config (run_config.h) reads one of Copus'
// own. Throws likewise, and where adapt.advise is not set.
AdvisedConfig parse_advised_config(std::string_view toml_text, const std::string& source,
                                   const std::vector<std::string>& overrides = {});

// Writes it as TOML that parse_advised_config reads back to an equal value, with every key.
std::string to_toml(const AdvisedConfig& config);

// Says why such a job cannot be in a configuration; empty where it can, as far as its batches tell.
std::optional<std::string> infeasible_reason(const AdvisedConfig& config, const Configuration& configuration);

// Returns the configuration in which the job begins.
Configuration configuration_of(const JobConfig& config);

// Returns the batch that optimizer.lr is for, in samples.
int64_t reference_batch_of(const JobConfig& config);

// Returns the number of tokens after which the run ends by max_steps or max_tokens, whichever comes first; 0 if neither
// is set. A run ends with a whole step, the first that reaches the limit.
int64_t limit_in_tokens(const TrainConfig& train);

// Tells whether adapt.objective is to spare tokens.
bool spares_tokens(const JobConfig& config);

}  // namespace copus
