// Limits what attention's backward pass on a GPU needs for a while: the gradient of every score, of a few sequences at
// a time, where the kernel that repeats bitwise writes it to memory (model/kernels_cudnn.cpp).
#pragma once

#include <algorithm>
#include <cstdint>

namespace copus {

inline constexpr int64_t attention_workspace_limit = int64_t{1} << 30;  // bytes

// The scores of one head, as cuDNN keeps their gradients in bfloat16: rows and columns are filled up to whole tiles.
struct ScoreTiles {
  int64_t rows, columns;

  static constexpr int64_t bytes = 2;  // of one score
  constexpr explicit ScoreTiles(int64_t sequence)
      : rows((sequence + 63) / 64 * 64), columns((sequence + 127) / 128 * 128) {}
};

// Returns for how many of `batch` sequences at a time the gradients of a rank's `heads` heads fit into the limit: the
// most that divide the batch, so that all calls are alike; 0 where not even one sequence does.
constexpr int64_t sequences_of_attention_backward(int64_t batch, int64_t heads, int64_t sequence) {
  const ScoreTiles tiles(sequence);
  // One division after the other, since the product may be too large for its type.
  const int64_t most = attention_workspace_limit / ScoreTiles::bytes / heads / tiles.rows / tiles.columns;
  for (int64_t count = std::min(most, batch); count > 0; --count) {
    if (batch % count == 0) return count;
  }
  return 0;
}

// Returns the bytes that these gradients take at a time.
constexpr int64_t attention_workspace_bytes(int64_t batch, int64_t heads, int64_t sequence) {
  const int64_t at_once = sequences_of_attention_backward(batch, heads, sequence);
  const ScoreTiles tiles(sequence);
  return at_once == 0 ? 0 : at_once * heads * tiles.rows * tiles.columns * ScoreTiles::bytes;
}

}  // namespace copus
