// Limits how many logits exist at once: the model's head processes a micro-batch in chunks of rows. A chunk's logits
// become their own gradient and are then freed.
#pragma once

#include <cstdint>

namespace copus {

// The approximate number of logits in a chunk on one rank. On a CPU it is small, so that they stay in the caches. On a
// GPU it is large, because each chunk adds its gradient to the gradient of the whole head. By an H100's data sheet,
// this addition takes as long as the products of 1,200 rows.
inline constexpr int64_t logits_at_once_on_cpu = int64_t{1} << 22;
inline constexpr int64_t logits_at_once_on_gpu = int64_t{1} << 29;

}  // namespace copus
