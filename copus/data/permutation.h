// A shuffled order of [0, size) that is computed, not stored.
#pragma once

#include <cstdint>

namespace copus {

// A bijection of [0, size) chosen by `key`: a Feistel network over a power of two that covers the range, with cycle
// walking (Black and Rogaway, "Ciphers with arbitrary finite domains", CT-RSA 2002). Values outside the range pass
// through the network again, fewer than two times on average (more often in ranges below 32).
class Permutation {
 public:
  // `size` >= 1.
  Permutation(uint64_t key, uint64_t size);

  // The element at `index` of the shuffled order, index < size.
  uint64_t operator()(uint64_t index) const;

 private:
  uint64_t encrypt(uint64_t value) const;

  uint64_t key_;
  uint64_t size_;
  int low_bits_;  // a value is split into this many low bits and high_bits_ high ones
  int high_bits_;
};

}  // namespace copus
