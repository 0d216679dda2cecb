// The memory of a configuration on the ranks of each pipeline stage, by purpose.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "copus/description/layer_blocks.h"
#include "copus/description/model_description.h"
#include "copus/description/parallel_strategy.h"
#include "copus/performance/block_elements.h"
#include "copus/performance/layer_memory.h"
#include "copus/performance/training_system.h"

namespace copus {

// Bytes of one rank at its peak within a step, by purpose.
struct MemoryParts {
  double weights = 0;
  double gradients = 0;
  double optimizer = 0;
  double activations = 0;  // kept for the backward pass, of all micro-batches in flight
  double logits = 0;       // on the last stage: logits and their gradient
  double workspace = 0;    // buffers of kernels and communication, fragmentation

  double total() const { return weights + gradients + optimizer + activations + logits + workspace; }
  bool operator==(const MemoryParts&) const = default;
};

struct MemoryPrediction {
  int64_t pipeline_rank = 0;  // the pipeline rank that needs most
  MemoryParts parts;          // its memory
};

// Predicts memory. Caches what configurations share, so that large tables take little time. Not thread-safe.
class MemoryModel {
 public:
  MemoryModel(const ModelDescription& model, int64_t sequence_length, TrainingSystem system);

  // `configuration` must be one that infeasible_reason allows.
  MemoryPrediction predict(const Configuration& configuration);
  // Predicts the memory of each pipeline rank, in order.
  std::vector<MemoryParts> predict_every_rank(const Configuration& configuration);

 private:
  class Calculation;
  const std::vector<std::vector<double>>& layers(const ParallelStrategy& strategy);
  const std::vector<LayerBytes>& layer_bytes(const Configuration& configuration);
  const std::vector<double>& copied_gradients(const ParallelStrategy& strategy);

  ModelDescription model_;
  int64_t sequence_length_;
  TrainingSystem system_;
  BlockCounter elements_;
  LayerKinds kinds_;
  std::vector<std::vector<BlockDescription>> blocks_;          // of each kind of layer
  std::map<LayerShape, std::vector<LayerBytes>> layer_bytes_;  // of each kind of layer
  double matrix_update_bytes_, dual_measurement_bytes_;
  // By (p, v): layers per pipeline rank and kind.
  std::map<std::pair<int64_t, int64_t>, std::vector<std::vector<double>>> layers_;
  // By (p, v): elements per pipeline rank of the gradients that a step copies at most, with t = 1.
  std::map<std::pair<int64_t, int64_t>, std::vector<double>> copied_;
};

// Returns a message like "needs 93.1 GiB on pipeline rank 0: weights 12.1, gradients ..., optimizer 36.2, activations
// 41.3, ...; has 79.6"; empty if the configuration fits. `memory_bytes`: of a device; 0 if unknown.
std::optional<std::string> out_of_memory_reason(const MemoryPrediction& prediction, double memory_bytes);

}  // namespace copus
