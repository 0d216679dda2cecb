// Mixes weighted sources: gives the source of every sample of the global order.
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

// Mixes sources so that each has its share of any number of whole blocks of the global order, to within 1.7 samples and
// mostly within one, however small its weight is and however many sources there are. No state: a block is computed from
// its number alone, each sample in as many operations as the binary logarithm of its source's share.
//
// The sources of a block's samples are shuffled by the seed, and each source gives its samples in order. Without the
// shuffle the sources would alternate in a fixed pattern, and the first samples of all steps would come from one
// source: the noise scale compares these samples with the whole batch.
//
// The sources are the leaves of a Huffman tree (Huffman 1952). Of the first m samples of a node, floor(m q + 1/2) go to
// its first child, whose part of the node's weight is q. Rounding is off by at most 1/2 at each node, and of what a
// node above was off by a source gets its part of that node's weight. In a Huffman tree these parts are at most 1, 1/2,
// 1/3, 1/5 and so on along the Fibonacci numbers, so that the errors sum to less than 1.7.
class Blend {
 public:
  static constexpr uint64_t block_size = 256;

  // `weights`: at least one, each finite and > 0.
  Blend(const std::vector<double>& weights, uint64_t seed);

  // The weights, scaled so that they sum to 1.
  const std::vector<double>& shares() const { return shares_; }

  // Finds the addresses of samples first .. first+count of the global order. Costs one pass over each block touched.
  std::vector<SampleAddress> locate(uint64_t first, int64_t count) const;

 private:
  // An inner node. A child is a source, or with the number of sources added an inner node.
  struct Node {
    int64_t first, second;
    uint64_t part_of_first;  // times 2^-64
  };

  SampleAddress locate_unshuffled(uint64_t sample) const;
  std::vector<SampleAddress> block(uint64_t number) const;

  uint64_t seed_;
  std::vector<double> shares_;
  std::vector<Node> nodes_;  // the root is the last one
};

}  // namespace copus
