// Limits the number of logits in memory: the head processes a micro-batch in chunks of rows. A chunk's logits are
// overwritten by their gradient, and then freed.
#pragma once

#include <cstdint>

namespace copus {

// Approximate number of logits per chunk on one rank. On a CPU it is small, so that the logits fit into the caches. On
// a GPU it is large, because each chunk adds its gradient to the gradient of the whole head. By an H100's data sheet,
// this addition takes as long as the matrix products of 1,200 rows.
inline constexpr int64_t logits_at_once_on_cpu = int64_t{1} << 22;
inline constexpr int64_t logits_at_once_on_gpu = int64_t{1} << 29;

}  // namespace copus
