// The position of each parameter on the mesh. Gradient reduction, norms, checkpoints, re-layouts and memory predictions
// all use one descriptor per parameter, and need no special cases.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "copus/description/mesh.h"
#include "copus/description/model_description.h"
#include "copus/description/parallel_strategy.h"
#include "copus/placement/stages.h"

namespace copus {

// How tensor parallelism splits a parameter: into `parts` along dimension `axis`. Rank tp holds part tp / replicas,
// where `replicas` = tensor_parallel / parts.
struct Sharding {
  int64_t axis = 0;
  int64_t parts = 1;     // 1: every tensor-parallel rank holds the unsharded parameter
  int64_t replicas = 1;  // neighbouring ranks with the same part
  // Whether the replicas' gradients must be summed, because each replica has seen only some of the tokens (sequence
  // parallelism) or some of the query heads (kv heads < t). Otherwise the gradients are equal.
  bool partial = false;
  // The stage of the parameter. A tied embedding has a second copy as the head on the last stage, even if both are on
  // the same stage: the two gradients have separate buffers, which are summed last. The second copy includes learned
  // positions, which the head does not use, so that both buckets are equal.
  int64_t stage = 0;
  bool tied = false;

  int64_t part_of(int64_t tensor_rank) const { return tensor_rank / replicas; }
  bool operator==(const Sharding&) const = default;
};

// The box begin[i] .. begin[i] + shape[i] of a logical tensor, in each dimension i.
struct Box {
  std::vector<int64_t> begin;
  std::vector<int64_t> shape;

  int64_t num_elements() const;
  bool operator==(const Box&) const = default;
};

// Walks over the elements from .. to of a `box`, row-major, in a tensor of shape `whole` (one or two dimensions). Calls
// visit(position, index, count), in order, for each range of `count` elements that is contiguous in both. The range
// begins at `position` of the box and at `index` of the unsharded tensor.
template <class Visit>
void for_stretches(const Box& box, const std::vector<int64_t>& whole, int64_t from, int64_t to, Visit visit) {
  const int64_t row_stride = whole.back();
  const int64_t first = (box.begin.size() == 2 ? box.begin.front() * row_stride : 0) + box.begin.back();
  // Whole rows have no gaps between them.
  const int64_t width = box.shape.back() == row_stride ? box.num_elements() : box.shape.back();
  for (int64_t position = from; position < to;) {
    const int64_t row = position / width, column = position % width;
    const int64_t count = std::min(to - position, width - column);
    visit(position, first + row * row_stride + column, count);
    position += count;
  }
}

// A rank's position and layout, which determine what it holds.
struct Placement {
  ParallelStrategy strategy;
  MeshCoordinates here;
  std::vector<LayerRange> stages;  // strategy.num_stages() ranges
};

// Returns the placement of a whole model on one rank.
Placement whole_model(const ModelDescription& model);
// Returns the placement of a rank of the world, with balanced stages.
Placement place(const ModelDescription& model, const ParallelStrategy& strategy, int64_t sequence_length, int64_t rank);

// Returns the first row of part `part` if `total` rows are split into `parts` parts as evenly as possible: floor(total
// * part / parts). Only the vocabulary may be split unevenly; infeasible_reason refuses all other uneven splits.
int64_t part_begin(int64_t total, int64_t parts, int64_t part);

Sharding shard(const ModelDescription& model, const Placement& placement, const ParameterInfo& parameter);

// Returns the box that tensor-parallel rank `tensor_rank` holds.
Box local_box(const ParameterInfo& parameter, const Sharding& sharding, int64_t tensor_rank);

// One parameter that a rank holds.
struct LocalParameter {
  ParameterInfo info;  // of the whole, logical tensor
  Sharding sharding;
  Box box;         // this rank's part
  int64_t chunk;   // index of the chunk on this pipeline rank
  bool tied_copy;  // whether it is the head's copy of a tied embedding, which comes last in the last stage's chunk
};

// Lists the parameters of the rank at `placement`: chunk by chunk, in canonical order within a chunk.
std::vector<LocalParameter> list_local_parameters(const ModelDescription& model, const Placement& placement);

}  // namespace copus
