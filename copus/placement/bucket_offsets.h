// The arrangement of a rank's parameters in flat buckets: one for each decoder layer, one for the embedding, one for
// the final norm with the head, and one for the tied copy of the head. Optimizer, norms, reductions and re-layouts work
// on buckets, not on single parameters.
#pragma once

#include <cstdint>
#include <vector>

#include "copus/placement/sharding.h"

namespace copus {

// Alignment in elements. Parameters start at multiples of this, so that shards and norms can be split there. Linear
// layers that read the same input (query, key and value; gate and up) are the exception: they are stored back to back.
inline constexpr int64_t bucket_alignment = 64;

// The elements begin .. end of a bucket.
struct Stretch {
  int64_t begin = 0, end = 0;
  int64_t size() const { return end - begin; }
  bool operator==(const Stretch&) const = default;
};

struct BucketOffsets {
  struct Entry {
    int64_t parameter;  // index into list_local_parameters
    int64_t offset;     // of the parameter's first element in the bucket
    bool operator==(const Entry&) const = default;
  };
  std::vector<Entry> entries;  // by offset
  int64_t chunk = 0;           // index of the chunk on this pipeline rank
  // Number of elements, padded to a multiple of bucket_alignment. With ZeRO it is a multiple of bucket_alignment *
  // zero_shards(), so that all shards are equal.
  int64_t size = 0;
  // The range that this rank updates: the unsharded bucket, with ZeRO the rank's share, and nothing if gradient_only.
  int64_t shard_begin = 0, shard_end = 0;
  // The ranges that this rank keeps between steps: the unsharded bucket, or only its shard of the weights (ZeRO-3) and
  // of the gradients (ZeRO-2 and 3).
  Stretch kept_weights, kept_gradients;
  // True for a tied copy of the head on the rank of its embedding, which has no weights of its own.
  bool gradient_only = false;
};

// Arranges the buckets of the rank at `placement`. `parameters` must be list_local_parameters(model, placement).
std::vector<BucketOffsets> arrange_buckets(const std::vector<LocalParameter>& parameters, const Placement& placement);

// Returns the ranges of a bucket between parameters, in order. They must be zero in every buffer, because norms and
// updates include them.
std::vector<Stretch> find_padding(const std::vector<LocalParameter>& parameters, const BucketOffsets& bucket);

// Returns the number of elements of each of the `shards` shards of a bucket, by rank. Shards are as even as boundaries
// at multiples of the alignment allow.
std::vector<int64_t> shard_sizes(int64_t bucket_size, int64_t shards);

}  // namespace copus
