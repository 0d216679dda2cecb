// The blocks in which attention on the CPU reads queries and keys.
#pragma once

#include <cstdint>

namespace copus {

// Blocks of queries and of keys begin at multiples of this many tokens. The queries of a block read all blocks of keys
// that one of them sees.
inline constexpr int64_t attention_block_on_cpu = 64;

}  // namespace copus
