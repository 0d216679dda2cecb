// Mixes weighted sources: decides which source each sample of the global order comes from.
#pragma once

#include <cstdint>
#include <vector>

namespace copus {

// The address of a sample. `draw` is the index among all samples of `source` in the global order.
struct SampleAddress {
  int64_t source;
  uint64_t draw;
  bool operator==(const SampleAddress&) const = default;
};

// Mixes sources by their weights. After any number of whole blocks of the global order, the number of samples of each
// source differs from its share by less than 1.7, and mostly by less than one. This holds for any weights and any
// number of sources. There is no state: a block is computed from its number alone. The cost of a sample grows with the
// binary logarithm of 1 / (the share of its source).
//
// The seed shuffles the sources of a block's samples, and each source gives its samples in order. Without the shuffle
// the sources would alternate in a fixed pattern, and the first samples of all steps would come from one source. The
// noise scale compares the first samples of a step with the whole batch, so the first samples must represent the batch.
//
// The sources are the leaves of a Huffman tree (Huffman 1952). Of the first m samples of a node, floor(m q + 1/2) go to
// its first child, where q is this child's fraction of the node's weight. Each node adds a rounding error of at most
// 1/2. A source inherits the error of a node above it in proportion to its fraction of that node's weight. In a Huffman
// tree these fractions are at most 1, 1/2, 1/3, 1/5 and so on along the Fibonacci numbers, so the errors sum to less
// than 1.7.
class Blend {
 public:
  static constexpr uint64_t block_size = 256;

  // `weights`: at least one, each finite and > 0.
  Blend(const std::vector<double>& weights, uint64_t seed);

  // The weights, scaled so that they sum to 1.
  const std::vector<double>& shares() const { return shares_; }

  // Finds the addresses of samples first .. first+count of the global order. Each block of this range costs one pass.
  std::vector<SampleAddress> locate(uint64_t first, int64_t count) const;

 private:
  // An inner node. A child is a source (its index) or an inner node (the number of sources plus its index).
  struct Node {
    int64_t first, second;
    uint64_t part_of_first;  // the first child's fraction of the node's weight, times 2^64
  };

  SampleAddress locate_unshuffled(uint64_t sample) const;
  std::vector<SampleAddress> block(uint64_t number) const;

  uint64_t seed_;
  std::vector<double> shares_;
  std::vector<Node> nodes_;  // the root is last
};

}  // namespace copus
