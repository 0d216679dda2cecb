// The block size with which attention on the CPU reads queries and keys.
#pragma once

#include <cstdint>

namespace copus {

// Tokens in a block of queries or keys; blocks begin at multiples of this. A block of queries reads every block of keys
// that any of its queries attends to.
inline constexpr int64_t attention_block_on_cpu = 64;

}  // namespace copus
