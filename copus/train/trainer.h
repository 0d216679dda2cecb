// Training, step by step: data, model and optimizer, and where they stand. No files and no output.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <string>

#include "copus/checkpoint/checkpoint.h"
#include "copus/config/run_config.h"
#include "copus/data/dataset.h"
#include "copus/model/decoder.h"
#include "copus/model/parameters.h"
#include "copus/report/step_record.h"
#include "copus/train/learning_rate.h"
#include "copus/train/optimizer.h"
#include "copus/train/training_state.h"

namespace copus {

class Trainer {
 public:
  // As many steps without a finite loss and gradient, one after the other, end the run.
  static constexpr int64_t max_skipped_in_a_row = 10;

  // A model with fresh weights. `config` names the precision (not automatic). Refers to `dataset` for its whole life.
  // Throws UserError when device or learning rate schedule are not to be had.
  Trainer(const RunConfig& config, const Dataset& dataset, at::Device device);

  // Replaces the fresh weights by those of a model file with the same parameters.
  void load(const std::map<std::string, TensorView, std::less<>>& weights);

  // Continues from a checkpoint: later steps are bitwise those of the run that wrote it. Throws UserError naming the
  // field and both values when seed, sequence length or data are not the checkpoint's, and for missing tensors.
  void restore(const Checkpoint& checkpoint);

  // One step: forward and backward of the global batch in micro-batches, clipping, AdamW. A step whose loss or gradient
  // norm is not finite changes no weight and is counted as skipped. Throws UserError after max_skipped_in_a_row of
  // them.
  StepRecord step();

  // The mean loss of a token of the held-out data, in nats, over at most evaluate.max_batches micro-batches. Empty when
  // there is no held-out data, or when `stop` (asked before every micro-batch) returned true.
  std::optional<double> held_out_loss(const std::function<bool()>& stop);

  // Everything that restore() needs; `run_config` goes along.
  Snapshot snapshot(std::string run_config) const;

  // A limit of the run is reached.
  bool finished() const;

  // The share of the run that is done, in [0, 1], and the seconds of training left at the pace so far.
  double share_done() const;
  double seconds_left() const;

  const TrainingState& state() const { return state_; }
  const ParameterStore& parameters() const { return parameters_; }
  ParameterStore& parameters() { return parameters_; }

 private:
  double accumulate_gradients();
  void skip_step(double loss, double gradient_norm, double learning_rate);

  RunConfig config_;
  const Dataset& dataset_;
  at::Device device_;
  LearningRate learning_rate_;
  ParameterStore parameters_;
  Decoder decoder_;
  AdamW optimizer_;
  TrainingState state_;
};

}  // namespace copus
