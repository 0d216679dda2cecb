// Mixes sources: gives the source of every sample of the global order.
#pragma once

#include <cstdint>
#include <vector>

namespace copus {

// The place of a sample: the draw-th sample of `source`, counted from the start of the global order.
struct SampleAddress {
  int64_t source;
  uint64_t draw;
  bool operator==(const SampleAddress&) const = default;
};

// Mixes sources in blocks of the global order. Every block holds the same number of samples of each source, its share
// of the weights rounded to an integer by largest remainder, in an order shuffled anew for each block. So the
// proportions hold in every block to within 1 / block_size, and the address of any sample follows from its block alone.
class Blend {
 public:
  static constexpr int64_t block_size = 4096;

  // `weights`: at least one, each finite and > 0.
  Blend(const std::vector<double>& weights, uint64_t seed);

  // Number of samples of each source in a block; they sum to block_size. Zero for a source whose share is too small.
  const std::vector<int64_t>& counts() const { return counts_; }

  // Finds the addresses of samples first .. first+count of the global order. Costs one pass over each block touched.
  std::vector<SampleAddress> locate(uint64_t first, int64_t count) const;

 private:
  std::vector<int64_t> counts_;
  std::vector<int64_t> source_of_slot_;  // [block_size], the unshuffled block: counts_[0] times 0, then 1, ...
  uint64_t seed_;
};

}  // namespace copus
