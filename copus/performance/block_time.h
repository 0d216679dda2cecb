// Seconds of each block on one rank: decoder layers, embedding, and final norm with head.
#pragma once

#include <compare>
#include <cstdint>
#include <vector>

#include "copus/description/cluster_description.h"
#include "copus/description/model_description.h"
#include "copus/description/parallel_strategy.h"
#include "copus/performance/training_system.h"

namespace copus {

// Seconds of a pass or of a part of it on one rank: computation, and exposed tensor-parallel communication.
struct Cost {
  double compute = 0;
  double communication = 0;

  double total() const { return compute + communication; }
  Cost& operator+=(const Cost& other) {
    compute += other.compute;
    communication += other.communication;
    return *this;
  }
  friend Cost operator+(Cost a, const Cost& b) { return a += b; }
  friend Cost operator*(double factor, const Cost& cost) {
    return {factor * cost.compute, factor * cost.communication};
  }
};

// The seconds of a block's three passes over one micro-batch.
struct BlockCost {
  Cost forward, backward_input, backward_weight;

  Cost backward() const { return backward_input + backward_weight; }
  Cost total() const { return forward + backward_input + backward_weight; }
  BlockCost& operator+=(const BlockCost& other) {
    forward += other.forward;
    backward_input += other.backward_input;
    backward_weight += other.backward_weight;
    return *this;
  }
  friend BlockCost operator*(double factor, const BlockCost& cost) {
    return {factor * cost.forward, factor * cost.backward_input, factor * cost.backward_weight};
  }
};

struct BlockCosts {
  std::vector<BlockCost> layers;  // by kind of layer (LayerKinds)
  BlockCost embedding, head;
  double message_bytes = 0;  // activations of one micro-batch, from a stage to the next
};

// The part of a configuration on which block times depend.
struct BlockShape {
  int64_t tensor_parallel = 1, micro_batch = 1;
  bool sequence_parallel = false;  // only with several tensor-parallel ranks
  Recompute recompute = Recompute::none;
  bool pipeline_across_nodes = false;
  bool defers_weights = false;  // whether W is a separate pass
  int64_t devices = 1;          // of a rank, which share its computation evenly
  auto operator<=>(const BlockShape&) const = default;
};

// Returns the seconds of all blocks. If the cluster's virtual clock charges operations, these are the charged seconds;
// otherwise they are predicted for the device.
BlockCosts cost_blocks(const ModelDescription& model, int64_t sequence_length, const ClusterDescription& cluster,
                       const TrainingSystem& system, const BlockShape& shape);

// Returns the seconds of a matrix product [rows, depth] x [depth, columns], with elements of element_bytes.
double matmul_seconds(const Device& device, double rows, double columns, double depth, double element_bytes);

// Returns an equivalent sequence length. Full attention over sequences of that length takes as long per token as
// attention within documents (system.document_length) over sequences of `sequence_length`.
//
// A document of n tokens costs n^2, so its tokens cost as much as tokens in sequences of n. If attention works in
// blocks of B tokens, a block of queries also reads keys outside of its documents, because it reads whole blocks of
// keys. Documents begin anywhere in a block, so a query reads n / 2 + B keys on average, as many as in a sequence of n
// + 2 B tokens.
double attended_length(const TrainingSystem& system, int64_t sequence_length);

// Returns the seconds of moving this many bytes to or from a device's memory; 0 if its speed is unknown.
double memory_seconds(const Device& device, double bytes);

}  // namespace copus
