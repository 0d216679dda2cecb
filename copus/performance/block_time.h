// Seconds that the blocks of a model take on one rank. Blocks are a decoder layer, the embedding, and final norm with
// head.
#pragma once

#include <compare>
#include <cstdint>

#include "copus/description/cluster_description.h"
#include "copus/description/model_description.h"
#include "copus/description/parallel_strategy.h"
#include "copus/performance/training_system.h"

namespace copus {

// Seconds of a pass, or a part of one, on one rank: computing, and tensor-parallel collectives that no computing hides.
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

// The costs of the three passes of a block over one micro-batch.
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
  BlockCost layer, embedding, head;
  double message_bytes = 0;  // bytes of one micro-batch, from a stage to the next
};

// The part of a configuration on which these costs depend.
struct BlockShape {
  int64_t tensor_parallel = 1, micro_batch = 1;
  bool sequence_parallel = false;  // only with several tensor-parallel ranks
  Recompute recompute = Recompute::none;
  bool pipeline_across_nodes = false;
  bool defers_weights = false;  // whether the weights' gradients are left to a pass of their own
  auto operator<=>(const BlockShape&) const = default;
};

// Returns the costs of blocks. Where the cluster says how many operations its virtual clock charges, the charged
// seconds count; otherwise those that the device takes.
BlockCosts cost_blocks(const ModelDescription& model, int64_t sequence_length, const ClusterDescription& cluster,
                       const TrainingSystem& system, const BlockShape& shape);

// Returns the seconds in which a device reads and writes so many bytes of its memory; 0 where its speed is not known.
double memory_seconds(const Device& device, double bytes);

}  // namespace copus
