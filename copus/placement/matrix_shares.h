// Which rank computes on each whole hidden matrix, and which ranks hold its parts. Optimizers such as Muon need whole
// matrices, which ZeRO and tensor parallelism split.
#pragma once

#include <cstdint>
#include <vector>

#include "copus/description/model_description.h"
#include "copus/description/parallel_strategy.h"
#include "copus/placement/bucket_offsets.h"
#include "copus/placement/sharding.h"
#include "copus/placement/stages.h"

namespace copus {

// Elements of a hidden matrix that a rank updates. The ranks with this tensor-parallel coordinate update them whose
// data-parallel coordinate modulo strategy.zero_shards() is `shard` (always 0 without ZeRO).
struct MatrixPart {
  int64_t tensor = 0;
  int64_t shard = 0;
  Stretch elements;  // counted over SharedMatrix::boxes[tensor], row-major
};

struct SharedMatrix {
  ParameterInfo parameter;
  int64_t bucket = 0;            // index among the buckets of each of these ranks
  std::vector<int64_t> offsets;  // by tensor-parallel rank: its first element in the bucket
  std::vector<Box> boxes;        // by tensor-parallel rank: the part of the matrix in the bucket
  int64_t replicas = 1;          // number of neighbouring tensor-parallel ranks with the same box
  std::vector<MatrixPart> parts;
  int64_t owner = 0;  // the rank that computes on the whole matrix: data * tensor_parallel + tensor
};

struct MatrixShares {
  std::vector<SharedMatrix> matrices;
  // The operations of the busiest rank over the mean of all ranks; 1 if there are no matrices.
  double imbalance = 1;
  int64_t idle_ranks = 0;  // that own no matrix
};

// Returns for each item the rank that does its work: the largest first, each to the rank with the least work so far
// (Graham 1969: the busiest rank has at most 4/3 of what is possible).
std::vector<int64_t> choose_owners(const std::vector<double>& work, int64_t ranks);

// Distributes the hidden matrices of a pipeline rank over its data- and tensor-parallel ranks, so that their
// operations in the Newton-Schulz iteration are even (choose_owners).
MatrixShares share_matrices(const ModelDescription& model, const ParallelStrategy& strategy,
                            const std::vector<LayerRange>& stages, int64_t pipeline_rank);

}  // namespace copus
