// A shuffled order of [0, size) that is computed, not stored.
#pragma once

#include <cstdint>

namespace copus {

// A bijection of [0, size) that `key` selects: a Feistel network over a power of two >= size, with cycle walking (Black
// and Rogaway, "Ciphers with arbitrary finite domains", CT-RSA 2002). A result >= size passes through the network
// again, fewer than two times on average (more often for sizes below 32).
class Permutation {
 public:
  // `size` >= 1.
  Permutation(uint64_t key, uint64_t size);

  // Returns the element at `index` (< size) of the shuffled order.
  uint64_t operator()(uint64_t index) const;

 private:
  uint64_t encrypt(uint64_t value) const;

  uint64_t key_;
  uint64_t size_;
  int low_bits_;  // number of low bits of a value; the other high_bits_ are the high half
  int high_bits_;
};

}  // namespace copus
