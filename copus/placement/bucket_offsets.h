// The arrangement of a rank's parameters in flat buckets. Each decoder layer has a bucket. The embedding, the final
// norm with the head, and the tied copy of the head have one each. Optimizer, norms, reductions and re-layouts work on
// buckets.
#pragma once

#include <cstdint>
#include <vector>

#include "copus/placement/sharding.h"

namespace copus {

// The alignment of parameters: each starts at a multiple of this many elements, so that shards and norms can be split
// there. Linear layers that read the same input (query, key and value; gate and up) are the exception: their parameters
// are stored back to back.
inline constexpr int64_t bucket_alignment = 64;

// A range of a bucket's elements, begin .. end.
struct Stretch {
  int64_t begin = 0, end = 0;
  int64_t size() const { return end - begin; }
  bool operator==(const Stretch&) const = default;
};

struct BucketOffsets {
  struct Entry {
    int64_t parameter;  // index into list_local_parameters
    int64_t offset;     // first element of the parameter in the bucket
    bool operator==(const Entry&) const = default;
  };
  std::vector<Entry> entries;  // by offset
  int64_t chunk = 0;           // chunk of this pipeline rank
  // Number of elements, padded to a multiple of bucket_alignment. With ZeRO it is padded to a multiple of
  // bucket_alignment * zero_shards(), so that all shards are equal.
  int64_t size = 0;
  // The elements that this rank updates: all, with ZeRO its share, and none if the bucket has only a gradient.
  int64_t shard_begin = 0, shard_end = 0;
  // The elements that this rank keeps between steps. Of compute weights it keeps all, or with ZeRO-3 its shard. Of
  // gradients it keeps all, or with ZeRO-2 and 3 its shard.
  Stretch kept_weights, kept_gradients;
  // A tied copy of the head on the same rank as its embedding has only a gradient.
  bool gradient_only = false;
};

// Arranges the buckets of the rank at `placement`; `parameters` = list_local_parameters(model, placement).
std::vector<BucketOffsets> arrange_buckets(const std::vector<LocalParameter>& parameters, const Placement& placement);

// Returns the ranges of a bucket that belong to no parameter, in order. They must be zero in every buffer, since norms
// and updates include them.
std::vector<Stretch> find_padding(const std::vector<LocalParameter>& parameters, const BucketOffsets& bucket);

// Returns the number of elements in each shard of a bucket that ZeRO splits over `shards` ranks, in the order of the
// ranks. The shards are as even as boundaries at multiples of the alignment allow.
std::vector<int64_t> shard_sizes(int64_t bucket_size, int64_t shards);

}  // namespace copus
