// Limits the temporary memory of attention's backward pass on a GPU. The deterministic kernel writes the gradients of
// all scores to memory, for a few sequences at a time (model/kernels/kernels_cudnn.cpp).
#pragma once

#include <algorithm>
#include <cstdint>

namespace copus {

inline constexpr int64_t attention_workspace_limit = int64_t{1} << 30;  // bytes

// The layout of one head's score gradients (bf16) in cuDNN: rows and columns are padded to whole tiles.
struct ScoreTiles {
  int64_t rows, columns;

  static constexpr int64_t bytes = 2;  // per score
  constexpr explicit ScoreTiles(int64_t sequence)
      : rows((sequence + 63) / 64 * 64), columns((sequence + 127) / 128 * 128) {}
};

// Returns for how many sequences of `batch` the score gradients of a rank's `heads` heads fit into the limit at once.
// This is a divisor of the batch, so that all calls have the same size; 0 if not even one sequence fits.
constexpr int64_t sequences_of_attention_backward(int64_t batch, int64_t heads, int64_t sequence) {
  const ScoreTiles tiles(sequence);
  // Divides in sequence, because the product might overflow.
  const int64_t most = attention_workspace_limit / ScoreTiles::bytes / heads / tiles.rows / tiles.columns;
  for (int64_t count = std::min(most, batch); count > 0; --count) {
    if (batch % count == 0) return count;
  }
  return 0;
}

// Returns the bytes of these gradients in one call.
constexpr int64_t attention_workspace_bytes(int64_t batch, int64_t heads, int64_t sequence) {
  const int64_t at_once = sequences_of_attention_backward(batch, heads, sequence);
  const ScoreTiles tiles(sequence);
  return at_once == 0 ? 0 : at_once * heads * tiles.rows * tiles.columns * ScoreTiles::bytes;
}

}  // namespace copus
