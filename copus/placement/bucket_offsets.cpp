#include "copus/placement/bucket_offsets.h"

#include <algorithm>
#include <numeric>

#include "copus/base/error.h"
#include "copus/base/numbers/round_up.h"
#include "copus/placement/parameter_rules.h"

namespace copus {
namespace {

int64_t align(int64_t elements) { return round_up(elements, bucket_alignment); }

// Returns a parameter's key; parameters of a chunk with equal keys share a bucket.
int64_t bucket_key(const LocalParameter& parameter) {
  if (parameter.tied_copy) return -3;
  if (parameter.info.layer >= 0) return parameter.info.layer;
  return parameter.info.kind == ParameterKind::embedding ? -1 : -2;
}

// Orders a bucket's entries, and sets their offsets and the bucket's size.
void arrange(const std::vector<LocalParameter>& parameters, BucketOffsets& bucket) {
  const auto info = [&](const BucketOffsets::Entry& entry) -> const ParameterInfo& {
    return parameters[entry.parameter].info;
  };
  // Moves joined parameters behind the first of them; all others keep their canonical order.
  for (auto first = bucket.entries.begin(); first != bucket.entries.end();) {
    first = std::stable_partition(first + 1, bucket.entries.end(), [&, &leader = info(*first)](const auto& entry) {
      return are_joined(leader, info(entry));
    });
  }
  const ParameterInfo* previous = nullptr;
  for (BucketOffsets::Entry& entry : bucket.entries) {
    const bool joined = previous != nullptr && are_joined(*previous, info(entry));
    entry.offset = joined ? bucket.size : align(bucket.size);
    bucket.size = entry.offset + parameters[entry.parameter].box.num_elements();
    previous = &info(entry);
  }
  bucket.size = align(bucket.size);
}

// Returns whether the parameter is the head's copy of a tied embedding, with the embedding among `parameters` too.
bool lies_beside_its_embedding(const std::vector<LocalParameter>& parameters, const LocalParameter& parameter) {
  return parameter.tied_copy && std::any_of(parameters.begin(), parameters.end(), [&](const LocalParameter& other) {
           return !other.tied_copy && other.info.name == parameter.info.name;
         });
}

// Returns the range of a bucket that a data-parallel rank updates.
Stretch share_of(int64_t bucket_size, const ParallelStrategy& strategy, int64_t data_rank) {
  if (!strategy.cuts_optimizer()) return {0, bucket_size};
  const std::vector<int64_t> sizes = shard_sizes(bucket_size, strategy.zero_shards());
  const auto mine = sizes.begin() + data_rank % strategy.zero_shards();
  const int64_t begin = std::accumulate(sizes.begin(), mine, int64_t{0});
  return {begin, begin + *mine};
}

}  // namespace

std::vector<BucketOffsets> arrange_buckets(const std::vector<LocalParameter>& parameters, const Placement& placement) {
  std::vector<BucketOffsets> buckets;
  for (size_t i = 0; i < parameters.size(); ++i) {
    const LocalParameter& parameter = parameters[i];
    if (i == 0 || parameter.chunk != parameters[i - 1].chunk ||
        bucket_key(parameter) != bucket_key(parameters[i - 1])) {
      buckets.emplace_back().chunk = parameter.chunk;
    }
    buckets.back().entries.push_back({.parameter = static_cast<int64_t>(i), .offset = 0});
  }
  for (BucketOffsets& bucket : buckets) {
    arrange(parameters, bucket);
    const LocalParameter& first = parameters[bucket.entries.front().parameter];
    bucket.gradient_only = lies_beside_its_embedding(parameters, first);
    const ParallelStrategy& strategy = placement.strategy;
    // NCCL reduces or gathers equal shares with one kernel, unequal shares with one kernel per rank.
    if (strategy.cuts_optimizer()) bucket.size = round_up(bucket.size, bucket_alignment * strategy.zero_shards());
    const Stretch whole{0, bucket.size};
    const Stretch share = share_of(bucket.size, strategy, placement.here.data);
    bucket.kept_gradients = strategy.cuts_gradients() ? share : whole;
    if (bucket.gradient_only) continue;
    bucket.kept_weights = strategy.cuts_weights() ? share : whole;
    bucket.shard_begin = share.begin;
    bucket.shard_end = share.end;
  }
  return buckets;
}

std::vector<Stretch> find_padding(const std::vector<LocalParameter>& parameters, const BucketOffsets& bucket) {
  std::vector<Stretch> padding;
  int64_t end = 0;
  for (const auto& [index, offset] : bucket.entries) {
    if (end < offset) padding.push_back({end, offset});
    end = offset + parameters[index].box.num_elements();
  }
  if (end < bucket.size) padding.push_back({end, bucket.size});
  return padding;
}

std::vector<int64_t> shard_sizes(int64_t bucket_size, int64_t shards) {
  COPUS_CHECK(bucket_size % bucket_alignment == 0 && shards > 0);
  const int64_t units = bucket_size / bucket_alignment;
  std::vector<int64_t> sizes;
  for (int64_t share = 0; share < shards; ++share) {
    sizes.push_back((units * (share + 1) / shards - units * share / shards) * bucket_alignment);
  }
  return sizes;
}

}  // namespace copus
