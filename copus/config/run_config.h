// The configuration of a job that Copus trains, written in TOML. Only this file and job_config.h state defaults.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "copus/config/job_config.h"
#include "copus/description/cluster_description.h"
#include "copus/description/model_description.h"
#include "copus/description/parallel_strategy.h"
#include "copus/description/precision.h"

namespace copus {

// A source of data.train.
struct DataSource {
  std::string path;  // a UTF-8 text file, or the prefix of a Megatron .bin/.idx pair
  // Relative fraction of the samples. If no source has a weight, all sources form one corpus. If only some sources have
  // a weight, the weight of the others is 1.
  std::optional<double> weight = {};
  bool operator==(const DataSource&) const = default;
};
struct DataConfig {
  std::vector<DataSource> train;      // data.train: a string, a list of strings, or a list of {path, weight}
  std::vector<std::string> held_out;  // files to evaluate on; empty: the tail of every training source
  double held_out_fraction = 0.01;    // size of that tail, as a fraction of each source's tokens; 0: none
  std::string document_separator;     // text between documents of text files; empty: a file is one document
  bool mask_document_ends = true;     // whether a document's first token is never predicted (carries no loss)
  // Whether a token attends only to its own document. Empty: a new run decides by its data (run_data.h). Runs older
  // than this setting, and all other code, treat empty as false.
  std::optional<bool> mask_across_documents;
  // With mask_across_documents: token-weighted mean length of documents, in tokens; 0: measured at the start. Predicted
  // attention takes as long as in sequences of this length.
  double document_length = 0;
  bool shuffle_shards = false;  // whether shards are read one after another, in a shuffled order
  double shard_timeout = 600;   // seconds that a step waits for a missing shard

  bool masks_across_documents() const { return mask_across_documents.value_or(false); }
  bool operator==(const DataConfig&) const = default;
};

// The settings of [train] that matter only if Copus itself trains.
struct ExecutionConfig {
  uint64_t seed = 1234;
  Precision precision = Precision::automatic;
  int64_t threads = 0;  // 0: all cores
  std::string device = "cpu";
  bool operator==(const ExecutionConfig&) const = default;
};

// Section [cluster].
struct ClusterConfig {
  ClockKind clock = ClockKind::real;
  // The inline fields or the file that cluster.config names; the default if neither is given.
  ClusterDescription description;
  std::string profile;  // profile.json with measurements for predicting step times; empty: none

  // The following settings matter only on the modelled clock.
  std::optional<ModelDescription> stands_for;             // model whose job time is predicted; empty: the run's own
  int64_t stands_for_sequence_length = 0;                 // 0: as in the run
  Precision stands_for_precision = Precision::automatic;  // automatic: as in the run
  std::optional<ClusterDescription> truth;                // the cluster that sets the clock; empty: `description`
  // Standard deviation of log(true step time / predicted step time) over layouts; 0: predictions are exact.
  double truth_layout_error = 0;
  uint64_t truth_seed = 1234;  // seed of these deviations

  bool is_modelled() const { return clock == ClockKind::modelled; }
  // Returns the description without fields that the clock ignores: only the virtual and the modelled clock use
  // flops_per_second.
  ClusterDescription as_timed() const;
  // Returns the cluster that sets the modelled clock.
  ClusterDescription true_cluster() const;
  bool operator==(const ClusterConfig&) const = default;
};

// Section [evaluate].
struct EvaluateConfig {
  int64_t interval = 200;       // steps; 0: no evaluation by steps
  int64_t interval_tokens = 0;  // tokens, independent of the batch; 0: no evaluation by tokens
  int64_t max_batches = 16;     // micro-batches per evaluation; 0: all held-out data
  bool operator==(const EvaluateConfig&) const = default;
};

// Section [checkpoint].
struct CheckpointConfig {
  int64_t interval = 0;            // steps; 0: no checkpoints by steps
  int64_t interval_seconds = 900;  // longest wall-clock time between checkpoints, in s; 0: no checkpoints by time
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
  bool enabled = true;  // whether a job under Copus' own launcher survives the failure of ranks
  bool replace = true;  // whether the launcher replaces failed ranks
  // How often the launcher restarts ranks, without progress in between, after all ranks of a machine have ended.
  int64_t restarts = 3;
  bool machines = false;  // whether to allow only layouts whose state survives the loss of any one machine
  bool operator==(const HealConfig&) const = default;
};

// A job that Copus trains.
struct RunConfig : JobConfig {
  // The model, from inline fields of [model] (config.json's names and `architecture`), from the file that model.config
  // names, or from the folder of init_from.
  ModelDescription model;
  // model.ignore_dropout: whether to train without the dropout that the model's description asks for.
  bool ignore_dropout = false;
  std::string init_from;  // model.init_from: Hugging Face folder with the initial weights; empty: none
  DataConfig data;
  ExecutionConfig execution;
  double wait_limit = 600;  // parallel.wait_limit: seconds that a rank waits for another rank before the job fails
  HealConfig heal;
  ClusterConfig cluster;
  EvaluateConfig evaluate;
  CheckpointConfig checkpoint;
  LogConfig log;
  bool operator==(const RunConfig&) const = default;
};

using AnyConfig = std::variant<RunConfig, AdvisedConfig>;

// Returns the settings that both kinds of configuration have.
const JobConfig& job_of(const AnyConfig& config);

// Returns every key that a run configuration may have, as "section.key", in the order in which to_toml writes them.
std::vector<std::string> run_config_keys();

// Parses a run configuration. `overrides` are "section.key=value" strings, applied after the file. Relative paths start
// at the working directory. `source` names the file in messages. Reads no other files than the model's config.json and
// the cluster's file. Throws UserError for malformed TOML (with line and column), an unknown key (suggesting the
// nearest), a wrong type, a value out of range, a contradiction, and an impossible layout.
RunConfig parse_run_config(std::string_view toml_text, const std::string& source,
                           const std::vector<std::string>& overrides = {});

// Parses the configuration of either kind of job. Without [model], another program trains the job.
AnyConfig parse_any_config(std::string_view toml_text, const std::string& source,
                           const std::vector<std::string>& overrides = {});

// Writes the resolved configuration as TOML, with every key and with inline model and cluster. parse_run_config reads
// it back to an equal value.
std::string to_toml(const RunConfig& config);

// Returns the keys whose values differ, in the order of run_config_keys.
std::vector<std::string> differing_keys(const RunConfig& one, const RunConfig& other);

// The job for which step times, memory and possible layouts are predicted: the run itself or, on the modelled clock,
// the job that the clock stands for.
struct PredictedJob {
  ModelDescription model;
  int64_t sequence_length = 0;
  Precision precision = Precision::automatic;
};
PredictedJob predicted_job(const RunConfig& config);

// Explains why the predicted job cannot train in a configuration; empty if it can. Does not check memory.
std::optional<std::string> infeasible_reason(const RunConfig& config, const Configuration& configuration);

// Returns the number of processes that train: the ranks of the layout or, on the modelled clock, one.
int64_t num_training_ranks(const RunConfig& config);

}  // namespace copus
