// The order in which the samples of a corpus are read shard after shard.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

namespace copus {

// An endless order of a corpus' samples. Every epoch visits the shards in a new shuffled order, `window` shards at a
// time, and shuffles the samples within each window, so that a shard is needed only during its window. A pure function
// of the key, the shards' sizes and the index. Thread-safe.
class ShardOrder {
 public:
  // Number of consecutive shards whose samples are shuffled together.
  static constexpr int64_t window = 4;

  // `samples`: the number of samples of each shard, at least one of them > 0.
  ShardOrder(const std::vector<int64_t>& samples, uint64_t key);

  uint64_t samples() const { return samples_; }  // per epoch

  struct Place {
    int64_t shard = 0, sample = 0;
    bool operator==(const Place&) const = default;
  };
  // Finds the draw-th sample of the order.
  Place place(uint64_t draw) const;

  // A shard, and the earliest draw that may need it.
  struct Need {
    int64_t shard = 0;
    uint64_t first_draw = 0;
    bool operator==(const Need&) const = default;
  };
  // Lists up to `count` distinct shards in the order in which draws need them, beginning with the window of `draw`.
  std::vector<Need> needs(uint64_t draw, int64_t count) const;

 private:
  struct Epoch;
  std::shared_ptr<const Epoch> epoch(uint64_t number) const;

  std::vector<int64_t> sizes_;
  std::vector<int64_t> filled_;  // shards with at least one sample
  uint64_t key_;
  uint64_t samples_ = 0;
  mutable std::mutex mutex_;
  mutable std::shared_ptr<const Epoch> latest_;
};

}  // namespace copus
