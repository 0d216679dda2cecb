#include "copus/data/shard_order.h"

#include <algorithm>
#include <set>
#include <utility>

#include "copus/base/error.h"
#include "copus/base/numbers/mix_bits.h"
#include "copus/data/permutation.h"

namespace copus {

namespace {

// The purposes of an epoch's permutations: to order the shards, and to order the samples of a window.
constexpr uint64_t shard_keys = 1, window_keys = 2;

uint64_t key_of(uint64_t key, uint64_t purpose, uint64_t epoch) {
  return extend_hash(extend_hash(key, purpose), epoch);
}

}  // namespace

struct ShardOrder::Epoch {
  uint64_t number = 0;
  std::vector<int64_t> shards;   // in the order of this epoch
  std::vector<uint64_t> begins;  // index of each window's first sample, then the total

  // The index of the window that holds a sample of the epoch.
  std::size_t window_of(uint64_t sample) const {
    return static_cast<std::size_t>(std::ranges::upper_bound(begins, sample) - begins.begin()) - 1;
  }
  std::size_t end_of(std::size_t window_index) const {
    return std::min(shards.size(), (window_index + 1) * static_cast<std::size_t>(window));
  }
};

ShardOrder::ShardOrder(const std::vector<int64_t>& samples, uint64_t key) : sizes_(samples), key_(key) {
  for (std::size_t shard = 0; shard < samples.size(); ++shard) {
    if (samples[shard] == 0) continue;
    filled_.push_back(static_cast<int64_t>(shard));
    samples_ += static_cast<uint64_t>(samples[shard]);
  }
  COPUS_CHECK(samples_ > 0, "no samples in ", samples.size(), " shards");
}

std::shared_ptr<const ShardOrder::Epoch> ShardOrder::epoch(uint64_t number) const {
  const std::lock_guard lock(mutex_);
  if (latest_ && latest_->number == number) return latest_;
  auto made = std::make_shared<Epoch>();
  made->number = number;
  const Permutation order(key_of(key_, shard_keys, number), filled_.size());
  uint64_t before = 0;
  for (uint64_t i = 0; i < filled_.size(); ++i) {
    if (i % window == 0) made->begins.push_back(before);
    const int64_t shard = filled_[order(i)];
    made->shards.push_back(shard);
    before += static_cast<uint64_t>(sizes_[static_cast<std::size_t>(shard)]);
  }
  made->begins.push_back(before);
  latest_ = made;
  return made;
}

ShardOrder::Place ShardOrder::place(uint64_t draw) const {
  const std::shared_ptr<const Epoch> here = epoch(draw / samples_);
  const uint64_t sample = draw % samples_;
  const std::size_t number = here->window_of(sample);
  const uint64_t begin = here->begins[number], size = here->begins[number + 1] - begin;
  const uint64_t key = extend_hash(key_of(key_, window_keys, here->number), number);
  auto left = static_cast<int64_t>(Permutation(key, size)(sample - begin));
  std::size_t visit = number * window;
  while (left >= sizes_[static_cast<std::size_t>(here->shards[visit])]) {
    left -= sizes_[static_cast<std::size_t>(here->shards[visit++])];
  }
  return {here->shards[visit], left};
}

std::vector<ShardOrder::Need> ShardOrder::needs(uint64_t draw, int64_t count) const {
  std::vector<Need> result;
  std::set<int64_t> listed;
  const auto wanted = static_cast<std::size_t>(std::min(count, static_cast<int64_t>(filled_.size())));
  std::size_t number = epoch(draw / samples_)->window_of(draw % samples_);
  for (uint64_t e = draw / samples_; result.size() < wanted; ++e, number = 0) {
    const std::shared_ptr<const Epoch> here = epoch(e);
    for (; number + 1 < here->begins.size(); ++number) {
      for (std::size_t visit = number * window; visit < here->end_of(number); ++visit) {
        const int64_t shard = here->shards[visit];
        if (result.size() < wanted && listed.insert(shard).second) {
          result.push_back({shard, e * samples_ + here->begins[number]});
        }
      }
    }
  }
  return result;
}

}  // namespace copus
