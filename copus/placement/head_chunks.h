// Limits how many scores of the vocabulary exist at once: the model's head works through a micro-batch in chunks of
// rows, each of which becomes its own gradient and is then forgotten.
#pragma once

#include <cstdint>

namespace copus {

// The approximate number of logits in a chunk on one rank. On a CPU few, which stay in its caches. On a GPU many: a
// chunk adds its gradient to that of the whole head, which by an H100's data sheet takes as long as the products of
// 1,200 rows.
inline constexpr int64_t logits_at_once_on_cpu = int64_t{1} << 22;
inline constexpr int64_t logits_at_once_on_gpu = int64_t{1} << 29;

}  // namespace copus
