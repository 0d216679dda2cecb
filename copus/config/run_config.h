// A run's configuration: what the user writes in TOML, with every default stated here and nowhere else.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "copus/strategy/model_description.h"

namespace copus {

enum class Precision { automatic, fp32, bf16 };
enum class Recompute { none, attention, full };
enum class LearningRateSchedule { constant, cosine, wsd };

// [data]
struct DataSource {
  std::string path;     // a UTF-8 text file, or the prefix of a Megatron .bin/.idx pair
  double weight = 1.0;  // share of the blend, relative to the other sources
};
struct DataConfig {
  std::vector<DataSource> train;      // data.train: a string, a list of strings, or a list of {path, weight}
  std::vector<std::string> held_out;  // data.held_out: files evaluated on; empty: the tail of every training source
  double held_out_fraction = 0.01;    // that tail, as a share of the tokens of each source
  std::string document_separator;     // text files: documents end at this string; empty: a file is one document
  bool mask_document_ends = true;     // no loss for predicting the first token of the next document
};

// [train]
struct TrainConfig {
  int64_t sequence_length = 512;
  int64_t global_batch = 32;  // sequences per optimizer step
  int64_t micro_batch = 8;    // sequences per forward/backward
  int64_t max_steps = 0;      // the run ends at the first of these that is set (> 0)
  int64_t max_tokens = 0;
  double max_seconds = 0;  // of training, evaluation and checkpoints not counted; the learning rate decays over it
  uint64_t seed = 1234;
  Precision precision = Precision::automatic;
  Recompute recompute = Recompute::none;
  double clip_norm = 1.0;  // 0: no clipping
  int64_t threads = 0;     // 0: all cores
  std::string device = "cpu";
};

// [optimizer]
struct OptimizerConfig {
  double lr = 1e-3;
  double min_lr_ratio = 0.1;  // final learning rate / lr
  double beta1 = 0.9;
  double beta2 = 0.95;
  double epsilon = 1e-8;
  double weight_decay = 0.1;
  LearningRateSchedule schedule = LearningRateSchedule::cosine;
  double warmup_tokens = 0;   // clocked in tokens; a value < 1 is a share of the run
  double decay_tokens = 0.2;  // wsd only: length of the final decay, likewise
};

// [evaluate]
struct EvaluateConfig {
  int64_t interval = 200;    // steps; 0: only at the end
  int64_t max_batches = 16;  // micro-batches per evaluation; 0: all held-out data
};

// [checkpoint]
struct CheckpointConfig {
  int64_t interval = 0;  // steps; 0: only at the end of the run and when it is interrupted
  int64_t keep_last = 2;
};

// [log]
struct LogConfig {
  int64_t interval = 10;  // steps between plain progress lines when the output is not a terminal
  bool tensorboard = true;
};

struct RunConfig {
  ModelDescription model;  // [model]: inline fields with config.json's names, or `model.config = "FILE"`
  std::string init_from;   // model.init_from: a Hugging Face directory whose weights to start from
  DataConfig data;
  TrainConfig train;
  OptimizerConfig optimizer;
  EvaluateConfig evaluate;
  CheckpointConfig checkpoint;
  LogConfig log;
};

// Reads a run configuration. `overrides` are "section.key=value" strings, applied after the file. Relative paths are
// relative to the working directory. `source` names the file in messages.
// Throws UserError: malformed TOML (with line and column), unknown key (names the nearest), wrong type, value out of
// range, contradiction between values.
RunConfig parse_run_config(std::string_view toml_text, const std::string& source,
                           const std::vector<std::string>& overrides = {});

// The resolved configuration as TOML that parse_run_config reads back to an equal value: every key is written.
std::string to_toml(const RunConfig& config);

}  // namespace copus
