// Optimizers such as Muon need unsharded matrices, but ZeRO and tensor parallelism shard them. This assigns each hidden
// matrix to the rank that computes its update, and lists the ranks that hold its parts.
#pragma once

#include <cstdint>
#include <vector>

#include "copus/description/model_description.h"
#include "copus/description/parallel_strategy.h"
#include "copus/placement/bucket_offsets.h"
#include "copus/placement/sharding.h"
#include "copus/placement/stages.h"

namespace copus {

// A part of a hidden matrix. It belongs to the ranks with this tensor-parallel coordinate and with a data-parallel
// coordinate equal to `shard` modulo strategy.zero_shards() (`shard` is 0 without ZeRO).
struct MatrixPart {
  int64_t tensor = 0;
  int64_t shard = 0;
  Stretch elements;  // row-major within SharedMatrix::boxes[tensor]
};

struct SharedMatrix {
  ParameterInfo parameter;
  int64_t bucket = 0;            // index of the matrix's bucket on each rank that holds parts
  std::vector<int64_t> offsets;  // by tensor-parallel rank: its first element within the bucket
  std::vector<Box> boxes;        // by tensor-parallel rank: the part of the matrix within the bucket
  int64_t replicas = 1;          // neighbouring tensor-parallel ranks with the same box
  std::vector<MatrixPart> parts;
  int64_t owner = 0;  // the rank that computes on the matrix: data * tensor_parallel + tensor
};

struct MatrixShares {
  std::vector<SharedMatrix> matrices;
  // Operations of the busiest rank / mean over all ranks; 1 if there are no matrices.
  double imbalance = 1;
  int64_t idle_ranks = 0;  // number of ranks that own no matrix
};

// Returns a rank for each item of work. Each item, the largest first, goes to the least loaded rank, so the busiest
// rank has at most 4/3 of the optimal load (Graham 1969).
std::vector<int64_t> choose_owners(const std::vector<double>& work, int64_t ranks);

// Distributes a pipeline rank's hidden matrices over its data- and tensor-parallel ranks, such that each has about the
// same operations of the Newton-Schulz iteration (choose_owners).
MatrixShares share_matrices(const ModelDescription& model, const ParallelStrategy& strategy,
                            const std::vector<LayerRange>& stages, int64_t pipeline_rank);

}  // namespace copus
