// Seconds that the decoder layers, the embedding, and the final norm with the head take on one rank.
#pragma once

#include <compare>
#include <cstdint>
#include <vector>

#include "copus/description/cluster_description.h"
#include "copus/description/model_description.h"
#include "copus/description/parallel_strategy.h"
#include "copus/performance/training_system.h"

namespace copus {

// Seconds of a pass, or of a part of one, on one rank: computation, and tensor-parallel collectives that do not overlap
// with it.
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

// The costs of the three passes of one of these over one micro-batch.
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
  double message_bytes = 0;  // bytes of one micro-batch, from one stage to the next
};

// The part of a configuration that determines these costs.
struct BlockShape {
  int64_t tensor_parallel = 1, micro_batch = 1;
  bool sequence_parallel = false;  // only with several tensor-parallel ranks
  Recompute recompute = Recompute::none;
  bool pipeline_across_nodes = false;
  bool defers_weights = false;  // whether weight gradients are computed in a separate pass
  auto operator<=>(const BlockShape&) const = default;
};

// Returns the costs of blocks. If the cluster's virtual clock charges operations, they are the charged seconds;
// otherwise the seconds that the device needs.
BlockCosts cost_blocks(const ModelDescription& model, int64_t sequence_length, const ClusterDescription& cluster,
                       const TrainingSystem& system, const BlockShape& shape);

// Returns the seconds of a matrix product [rows, depth] x [depth, columns] with elements of this size.
double matmul_seconds(const Device& device, double rows, double columns, double depth, double element_bytes);

// Returns the length of whole sequences in which attention takes as long, for each token, as in sequences of
// `sequence_length` with the system's documents.
//
// A document of n tokens takes n^2, so that tokens in documents of mean length n take as long as in sequences of n. In
// blocks of B tokens, the queries of a block read the keys from the beginning of its first query's document, rounded
// down to a block, to the block itself. Documents begin anywhere in a block, so a query reads n / 2 + B keys on
// average: as many as in a whole sequence of n + 2 B.
double attended_length(const TrainingSystem& system, int64_t sequence_length);

// Returns the seconds in which a device moves this many bytes to or from its memory; 0 if its speed is unknown.
double memory_seconds(const Device& device, double bytes);

}  // namespace copus
