// The order in which the samples of a corpus are read shard after shard.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

namespace copus {

// An endless order of the samples of a corpus. Every epoch visits the shards in another shuffled order, and shuffles
// the samples of each window of a few shards, so that a shard is needed only in its window. It is a pure function of
// the key, the shards' sizes and the index of a sample. Thread-safe.
class ShardOrder {
 public:
  // Number of consecutive shards whose samples are shuffled together.
  static constexpr int64_t window = 4;

  // samples: those of each shard, of which at least one has some.
  ShardOrder(const std::vector<int64_t>& samples, uint64_t key);

  uint64_t samples() const { return samples_; }  // of an epoch

  // A sample of a shard.
  struct Place {
    int64_t shard = 0, sample = 0;
    bool operator==(const Place&) const = default;
  };
  // Finds the draw-th sample of the order.
  Place place(uint64_t draw) const;

  // A shard, and the first sample of the order that may be in it.
  struct Need {
    int64_t shard = 0;
    uint64_t first_draw = 0;
    bool operator==(const Need&) const = default;
  };
  // Returns up to `count` shards in the order in which the samples from `draw` on need them, each shard once. Begins
  // with the window of `draw`.
  std::vector<Need> needs(uint64_t draw, int64_t count) const;

 private:
  struct Epoch;
  std::shared_ptr<const Epoch> epoch(uint64_t number) const;

  std::vector<int64_t> sizes_;
  std::vector<int64_t> filled_;  // the shards that have samples
  uint64_t key_;
  uint64_t samples_ = 0;
  mutable std::mutex mutex_;
  mutable std::shared_ptr<const Epoch> latest_;
};

}  // namespace copus
