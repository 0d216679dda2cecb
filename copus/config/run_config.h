// A run's configuration: what the user writes in TOML, with every default stated here and nowhere else.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "copus/description/cluster_description.h"
#include "copus/description/model_description.h"
#include "copus/description/parallel_strategy.h"

namespace copus {

// The table below each of these enumerations holds the names of its values in a configuration file.
enum class Precision { automatic, fp32, bf16 };
template <>
inline constexpr auto named_values<Precision> = std::to_array<NamedValue<Precision>>(
    {{Precision::automatic, "auto"}, {Precision::fp32, "fp32"}, {Precision::bf16, "bf16"}});

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

// Section [data].
struct DataSource {
  std::string path;  // a UTF-8 text file, or the prefix of a Megatron .bin/.idx pair
  // Share of the samples, relative to the other sources: 1 where others have a weight and this one has none. Where none
  // has a weight, all sources are one corpus.
  std::optional<double> weight = {};
  bool operator==(const DataSource&) const = default;
};
struct DataConfig {
  std::vector<DataSource> train;      // data.train: a string, a list of strings, or a list of {path, weight}
  std::vector<std::string> held_out;  // files to evaluate on; empty: the last part of every training source
  double held_out_fraction = 0.01;    // size of that last part, as a share of the tokens of each source; 0: none
  std::string document_separator;     // text between documents of text files; empty: a file is one document
  bool mask_document_ends = true;     // whether the prediction of a document's first token carries no loss
  bool operator==(const DataConfig&) const = default;
};

// Section [train].
struct TrainConfig {
  int64_t sequence_length = 512;
  int64_t global_batch = 32;  // sequences per optimizer step
  int64_t micro_batch = 8;    // sequences per forward and backward pass
  int64_t max_steps = 0;      // the run ends at the first of the three limits that is set (> 0)
  int64_t step_batch = 0;     // the batch that max_steps counts in; 0: global_batch
  int64_t max_tokens = 0;
  double max_seconds = 0;  // training time without evaluation and checkpoints; the learning rate decays over it
  uint64_t seed = 1234;
  Precision precision = Precision::automatic;
  double clip_norm = 1.0;  // 0: no clipping
  int64_t threads = 0;     // 0: all cores
  std::string device = "cpu";
  bool operator==(const TrainConfig&) const = default;
};

// Section [optimizer].
struct OptimizerConfig {
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
  // The phases of the learning rate's schedule in which nothing is switched, except by an open-loop policy.
  std::vector<SchedulePhase> hold_in;
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

// Section [cluster].
struct ClusterConfig {
  ClockKind clock = ClockKind::real;
  // The content of inline fields or of the file that cluster.config names; the default where neither is given.
  ClusterDescription description;
  std::string profile;  // profile.json of earlier measurements from which steps are predicted; empty: none

  // The following count on the modelled clock alone.
  std::optional<ModelDescription> stands_for;  // the model of the job that the clock is of; empty: the run's own
  int64_t stands_for_sequence_length = 0;      // 0: that of the run
  Precision stands_for_precision = Precision::automatic;  // automatic: that of the run
  std::optional<ClusterDescription> truth;                // what the clock follows; empty: the description
  // One standard deviation of the logarithm of a layout's true step time over the predicted one; 0: none.
  double truth_layout_error = 0;
  uint64_t truth_seed = 1234;  // of these deviations

  bool is_modelled() const { return clock == ClockKind::modelled; }
  // Returns the description without what the chosen clock ignores: flops_per_second counts on the virtual and the
  // modelled clock.
  ClusterDescription as_timed() const;
  // Returns the cluster that the modelled clock follows.
  ClusterDescription true_cluster() const;
  bool operator==(const ClusterConfig&) const = default;
};

// Section [evaluate].
struct EvaluateConfig {
  int64_t interval = 200;       // steps; 0: no evaluation by steps
  int64_t interval_tokens = 0;  // tokens, which do not change with the batch; 0: no evaluation by tokens
  int64_t max_batches = 16;     // micro-batches per evaluation; 0: all held-out data
  bool operator==(const EvaluateConfig&) const = default;
};

// Section [checkpoint].
struct CheckpointConfig {
  int64_t interval = 0;            // steps; 0: none by steps
  int64_t interval_seconds = 900;  // of wall clock, at most, from one to the next; 0: none by time
  int64_t keep_last = 2;
  bool operator==(const CheckpointConfig&) const = default;
};

// Section [log].
struct LogConfig {
  int64_t interval = 10;  // steps between plain progress lines when the output is not a terminal
  bool tensorboard = true;
  bool operator==(const LogConfig&) const = default;
};

// Section [heal].
struct HealConfig {
  bool enabled = true;  // whether a job that our launcher has started goes on when ranks fail
  bool replace = true;  // whether the launcher starts new ranks in their place
  // How many times without progress the launcher starts ranks anew where all of a machine have ended.
  int64_t restarts = 3;
  bool machines = false;  // whether only layouts are used whose state outlives the loss of any one machine
  bool operator==(const HealConfig&) const = default;
};

struct RunConfig {
  // The model from inline fields of [model], with config.json's names and `architecture`; from the file that
  // model.config names; or from the directory of init_from.
  ModelDescription model;
  std::string init_from;  // model.init_from: a Hugging Face directory whose weights the run starts from; empty: none
  DataConfig data;
  TrainConfig train;
  OptimizerConfig optimizer;
  NoiseScaleConfig noise_scale;
  ParallelStrategy parallel;  // [parallel], and train.recompute
  double wait_limit = 600;    // parallel.wait_limit: seconds that a rank waits for another before the job has failed
  HealConfig heal;
  AdaptConfig adapt;
  ClusterConfig cluster;
  EvaluateConfig evaluate;
  CheckpointConfig checkpoint;
  LogConfig log;
  // Whether another program trains: Copus only advises it, and knows nothing of its model.
  bool is_trained_elsewhere() const { return !model.is_known(); }
  bool operator==(const RunConfig&) const = default;
};

// Returns every key that a run configuration may have, as "section.key", in the order in which to_toml writes them.
std::vector<std::string> run_config_keys();

// The programs that may train what a configuration describes: whoever only looks at runs takes those of any.
enum class Trainers { copus, any };

// Reads a run configuration. `overrides` are "section.key=value" strings, applied after the file. Relative paths begin
// at the working directory. `source` names the file in messages. The only files opened are the model's config.json and
// the cluster's file. Throws UserError for malformed TOML (with line and column), an unknown key (naming the nearest),
// a wrong type, a value out of range, a contradiction between values, an impossible layout, and a run of a trainer that
// is not wanted.
RunConfig parse_run_config(std::string_view toml_text, const std::string& source,
                           const std::vector<std::string>& overrides = {}, Trainers trainers = Trainers::copus);

// Writes the resolved configuration as TOML that parse_run_config reads back to an equal value: with every key, and the
// model and the cluster as inline fields.
std::string to_toml(const RunConfig& config);

// Returns the keys, in the order of run_config_keys, whose values differ.
std::vector<std::string> differing_keys(const RunConfig& one, const RunConfig& other);

// Returns the configuration in which the run begins.
Configuration configuration_of(const RunConfig& config);

// Returns the batch that optimizer.lr is for, in samples.
int64_t reference_batch_of(const RunConfig& config);

// What step times, memory and possible layouts are predicted for: the run itself or, on the modelled clock, the job
// that it stands for.
struct PredictedJob {
  ModelDescription model;
  int64_t sequence_length = 0;
  Precision precision = Precision::automatic;
};
PredictedJob predicted_job(const RunConfig& config);

// Returns the number of ranks that train: those of the layout or, on the modelled clock, one.
int64_t num_training_ranks(const RunConfig& config);

// Returns the number of tokens after which the run ends by max_steps or max_tokens, whichever comes first; 0 if neither
// is set. A run ends with a whole step, the first that reaches the limit.
int64_t limit_in_tokens(const TrainConfig& train);

// Tells whether adapt.objective is to spare tokens.
bool spares_tokens(const RunConfig& config);

}  // namespace copus
