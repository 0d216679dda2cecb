#include "copus/placement/bucket_offsets.h"

#include <algorithm>
#include <array>
#include <map>
#include <numeric>
#include <string>
#include <string_view>

#include "copus/base/error.h"
#include "copus/base/round_up.h"

namespace copus {
namespace {

// Groups of parameters of linear layers that read the same input. The members of a group lie back to back in a bucket.
constexpr std::array<std::array<std::string_view, 3>, 3> joined_groups = {{
    {"q_proj.weight", "k_proj.weight", "v_proj.weight"},
    {"q_proj.bias", "k_proj.bias", "v_proj.bias"},
    {"gate_proj.weight", "up_proj.weight", ""},
}};

// Returns the index of the joined group that the parameter belongs to, or -1.
int64_t joined_group(const std::string& name) {
  for (size_t group = 0; group < joined_groups.size(); ++group) {
    for (const std::string_view member : joined_groups[group]) {
      if (!member.empty() && name.ends_with(member)) return static_cast<int64_t>(group);
    }
  }
  return -1;
}

int64_t align(int64_t elements) { return round_up(elements, bucket_alignment); }

// Returns the bucket's key: parameters of a chunk with equal keys share a bucket.
int64_t bucket_key(const LocalParameter& parameter) {
  if (parameter.tied_copy) return -3;
  if (parameter.info.layer >= 0) return parameter.info.layer;
  return parameter.info.kind == ParameterKind::embedding ? -1 : -2;
}

// Orders the bucket's entries, sets their offsets and the bucket's size.
void arrange(const std::vector<LocalParameter>& parameters, BucketOffsets& bucket) {
  const auto name = [&](int64_t index) -> const std::string& { return parameters[index].info.name; };
  // Members of a joined group move up behind the group's first member; other parameters keep their canonical order.
  std::map<int64_t, int64_t> first_of_group;
  const auto rank = [&](int64_t index) {
    const int64_t group = joined_group(name(index));
    return group < 0 ? index : first_of_group.try_emplace(group, index).first->second;
  };
  for (const BucketOffsets::Entry& entry : bucket.entries) rank(entry.parameter);
  std::stable_sort(bucket.entries.begin(), bucket.entries.end(),
                   [&](const auto& a, const auto& b) { return rank(a.parameter) < rank(b.parameter); });
  int64_t previous_group = -1;
  for (BucketOffsets::Entry& entry : bucket.entries) {
    const int64_t group = joined_group(name(entry.parameter));
    entry.offset = group >= 0 && group == previous_group ? bucket.size : align(bucket.size);
    bucket.size = entry.offset + parameters[entry.parameter].box.num_elements();
    previous_group = group;
  }
  bucket.size = align(bucket.size);
}

// Recognises the head's copy of a tied embedding where the embedding itself is among the parameters too.
bool lies_beside_its_embedding(const std::vector<LocalParameter>& parameters, const LocalParameter& parameter) {
  return parameter.tied_copy && std::any_of(parameters.begin(), parameters.end(), [&](const LocalParameter& other) {
           return !other.tied_copy && other.info.name == parameter.info.name;
         });
}

// Returns the elements of a bucket that a data-parallel rank updates.
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
