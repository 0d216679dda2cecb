// Computes random numbers as pure functions of (key, position), without state. Weights and samples therefore do not
// depend on the order, the rank or the chunks in which they are drawn.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

namespace copus {

// Returns one block of 128 random bits: Philox4x32 with 10 rounds (Salmon, Moraes, Dror, Shaw, "Parallel random
// numbers: as easy as 1, 2, 3", SC 2011). In the paper's order, the four 32-bit words of the counter are the low and
// high halves of `counter_low`, then of `counter_high`. The two words of the key are the low and high halves of `key`.
std::array<uint32_t, 4> philox(uint64_t key, uint64_t counter_high, uint64_t counter_low);

// Returns the key of the stream called `name` in a run seeded with `seed`. Different names or seeds give unrelated
// keys.
uint64_t stream_key(uint64_t seed, std::string_view name);

// Returns standard normal deviate number `index` of stream `key`, by the Box-Muller transform of Philox block index / 4
// (with counter_high = 0). The deviate is computed in double and rounded to float. C libraries may differ in the last
// bit of a double; the rounding hides this except in about one of 2^28 values.
float standard_normal(uint64_t key, uint64_t index);

// Writes out[i] = scale * (deviate number first_index + i), rounded to float once, for i in [0, count).
void fill_normal(uint64_t key, uint64_t first_index, uint64_t count, double scale, float* out);

}  // namespace copus
