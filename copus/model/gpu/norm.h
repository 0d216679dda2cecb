// RMSNorm and LayerNorm with the addition of the residual, forward and backward. A thread block keeps whole rows in
// registers, so that every operand is read or written once. Each thread holds up to K vectors of V elements of a row.
//
// Bytes per row of n elements of s bytes: forward 4 n s, backward 4 n s, which is the minimum. Backward moves n / 2
// more for partial sums of the weight's gradient: one sum of 4 n bytes per 16 rows, written and read again.
#pragma once

#include "copus/model/gpu/device_code.h"
#include "copus/model/gpu/kernels.h"

namespace copus::gpu {

inline constexpr int norm_threads = 512;

// Returns the first column of a thread's pack k.
template <int V>
COPUS_DEVICE int64_t norm_column(int k) {
  return (static_cast<int64_t>(k) * block_threads() + thread_index()) * V;
}

template <class S, int V, int K, bool is_layer>
COPUS_KERNEL(norm_threads)
norm_forward_kernel(const NormForward a) {
  const int64_t first = block_index() * a.width;
  const S* const residual = static_cast<const S*>(a.residual) + first;
  Pack<S, V> input[K];
  COPUS_UNROLL
  for (int k = 0; k < K; ++k) {
    if (norm_column<V>(k) < a.width) input[k] = load<V>(residual + norm_column<V>(k));
  }
  if (a.delta != nullptr) {
    const S* const delta = static_cast<const S*>(a.delta) + first;
    S* const sum = static_cast<S*>(a.sum) + first;
    COPUS_UNROLL
    for (int k = 0; k < K; ++k) {
      if (norm_column<V>(k) >= a.width) continue;
      const Pack<S, V> addend = load<V>(delta + norm_column<V>(k));
      COPUS_UNROLL
      for (int v = 0; v < V; ++v) {
        input[k].values[v] = round_to<S>(widen(input[k].values[v]) + widen(addend.values[v]));
      }
    }
    COPUS_UNROLL
    for (int k = 0; k < K; ++k) {
      if (norm_column<V>(k) < a.width) store(sum + norm_column<V>(k), input[k]);
    }
  }
  float mean = 0;
  if constexpr (is_layer) {
    float total = 0;
    COPUS_UNROLL
    for (int k = 0; k < K; ++k) {
      if (norm_column<V>(k) >= a.width) continue;
      COPUS_UNROLL
      for (int v = 0; v < V; ++v) total += widen(input[k].values[v]);
    }
    mean = sum_over_block(total) / static_cast<float>(a.width);
    if (thread_index() == 0) a.statistics[2 * block_index()] = mean;
  }
  float squares = 0;
  COPUS_UNROLL
  for (int k = 0; k < K; ++k) {
    if (norm_column<V>(k) >= a.width) continue;
    COPUS_UNROLL
    for (int v = 0; v < V; ++v) {
      const float x = is_layer ? widen(input[k].values[v]) - mean : widen(input[k].values[v]);
      squares += x * x;
    }
  }
  const float rstd = 1.0F / sqrtf(sum_over_block(squares) / static_cast<float>(a.width) + a.epsilon);
  if (thread_index() == 0) a.statistics[is_layer ? 2 * block_index() + 1 : block_index()] = rstd;
  const S* const weight = static_cast<const S*>(a.weight);
  S* const normed = static_cast<S*>(a.normed) + first;
  COPUS_UNROLL
  for (int k = 0; k < K; ++k) {
    if (norm_column<V>(k) >= a.width) continue;
    const Pack<S, V> factor = load<V>(weight + norm_column<V>(k));
    if constexpr (is_layer) {
      const Pack<S, V> bias = load<V>(static_cast<const S*>(a.bias) + norm_column<V>(k));
      COPUS_UNROLL
      for (int v = 0; v < V; ++v) {
        const float x = (widen(input[k].values[v]) - mean) * rstd;
        input[k].values[v] = round_to<S>(x * widen(factor.values[v]) + widen(bias.values[v]));
      }
    } else {
      COPUS_UNROLL
      for (int v = 0; v < V; ++v) {
        input[k].values[v] = round_to<S>(widen(input[k].values[v]) * rstd * widen(factor.values[v]));
      }
    }
    store(normed + norm_column<V>(k), input[k]);
  }
}

template <class S, int V, int K, bool is_layer>
COPUS_KERNEL(norm_threads)
norm_backward_kernel(const NormBackward a) {
  const S* const weight = static_cast<const S*>(a.weight);
  Pack<S, V> factor[K];
  float weight_gradient[K][V];
  COPUS_UNROLL
  for (int k = 0; k < K; ++k) {
    if (norm_column<V>(k) < a.width) factor[k] = load<V>(weight + norm_column<V>(k));
    COPUS_UNROLL
    for (int v = 0; v < V; ++v) weight_gradient[k][v] = 0;
  }
  const int64_t begin = block_index() * norm_rows_per_partial_sum;
  const int64_t end = begin + norm_rows_per_partial_sum < a.rows ? begin + norm_rows_per_partial_sum : a.rows;
  for (int64_t row = begin; row < end; ++row) {
    const S* const output_gradient = static_cast<const S*>(a.output_gradient) + row * a.width;
    const S* const input = static_cast<const S*>(a.input) + row * a.width;
    const S* const residual_gradient = static_cast<const S*>(a.residual_gradient) + row * a.width;
    const bool has_residual = a.residual_gradient != nullptr;
    // If there are enough registers, the residual's gradient is loaded with the other operands, so that this load does
    // not wait for the reduction.
    constexpr bool upstream_early = K <= 8;
    Pack<S, V> dy[K], x[K], upstream[K];
    COPUS_UNROLL
    for (int k = 0; k < K; ++k) {
      if (norm_column<V>(k) >= a.width) continue;
      dy[k] = load<V>(output_gradient + norm_column<V>(k));
      x[k] = load<V>(input + norm_column<V>(k));
      if (has_residual && upstream_early) upstream[k] = load<V>(residual_gradient + norm_column<V>(k));
    }
    const float mean = is_layer ? a.statistics[2 * row] : 0, rstd = a.statistics[is_layer ? 2 * row + 1 : row];
    const auto centred = [&](int k, int v) { return is_layer ? widen(x[k].values[v]) - mean : widen(x[k].values[v]); };
    float products = 0, total = 0;
    COPUS_UNROLL
    for (int k = 0; k < K; ++k) {
      if (norm_column<V>(k) >= a.width) continue;
      COPUS_UNROLL
      for (int v = 0; v < V; ++v) {
        const float product = widen(dy[k].values[v]) * centred(k, v);
        weight_gradient[k][v] += product * rstd;
        products += product * widen(factor[k].values[v]);
        if constexpr (is_layer) total += widen(dy[k].values[v]) * widen(factor[k].values[v]);
      }
    }
    float average = 0;
    if constexpr (is_layer) average = sum_over_block(total) / static_cast<float>(a.width);
    const float projection = sum_over_block(products) / static_cast<float>(a.width) * rstd * rstd;
    S* const input_gradient = static_cast<S*>(a.input_gradient) + row * a.width;
    COPUS_UNROLL
    for (int k = 0; k < K; ++k) {
      if (norm_column<V>(k) >= a.width) continue;
      if (has_residual && !upstream_early) upstream[k] = load<V>(residual_gradient + norm_column<V>(k));
      COPUS_UNROLL
      for (int v = 0; v < V; ++v) {
        float dx = widen(dy[k].values[v]) * widen(factor[k].values[v]) - centred(k, v) * projection;
        if constexpr (is_layer) dx -= average;
        dx *= rstd;
        if (has_residual) dx += widen(upstream[k].values[v]);
        dy[k].values[v] = round_to<S>(dx);
      }
      store(input_gradient + norm_column<V>(k), dy[k]);
    }
  }
  float* const partial_sum = a.weight_gradients + block_index() * a.width;
  COPUS_UNROLL
  for (int k = 0; k < K; ++k) {
    COPUS_UNROLL
    for (int v = 0; v < V; ++v) {
      if (norm_column<V>(k) < a.width) partial_sum[norm_column<V>(k) + v] = weight_gradient[k][v];
    }
  }
}

// Norms of heads. Each warp processes one head at a time. A head is so short that it is read again from the cache.
// Bytes per head of n elements of s bytes: forward 2 n s, backward 3 n s, and n more for partial sums of the weights'
// gradients.
inline constexpr int head_norm_threads = static_cast<int>(head_norm_warps) * smallest_warp;

COPUS_DEVICE float sum_over_warp(float value) {
  for (int bits = warp_size() / 2; bits > 0; bits /= 2) value += shuffle_xor(value, bits);
  return value;
}

// Calls f(column) with the first column of each pack of a head that this thread processes.
template <int V, class F>
COPUS_DEVICE void for_packs_of_head(int64_t head_dim, F f) {
  const int lane = thread_index() % warp_size();
  for (int64_t column = int64_t{lane} * V; column < head_dim; column += int64_t{warp_size()} * V) f(column);
}

template <int V, class S>
COPUS_DEVICE float reciprocal_rms_of_head(const S* x, int64_t head_dim, float epsilon, bool is_there) {
  float squares = 0;
  if (is_there) {
    for_packs_of_head<V>(head_dim, [&](int64_t column) {
      const Pack<S, V> values = load<V>(x + column);
      COPUS_UNROLL
      for (int v = 0; v < V; ++v) squares += widen(values.values[v]) * widen(values.values[v]);
    });
  }
  return 1.0F / sqrtf(sum_over_warp(squares) / static_cast<float>(head_dim) + epsilon);
}

template <class S, int V>
COPUS_KERNEL(head_norm_threads)
head_norm_forward_kernel(const HeadNormForward a) {
  const int warp = thread_index() / warp_size(), warps = block_threads() / warp_size();
  const int64_t all = a.heads + 2 * a.kv_heads;
  // All warps run equally many iterations, so that all threads take part in every sum.
  for (int64_t first = 0; first < all; first += warps) {
    const int64_t head = first + warp;
    const bool is_there = head < all, is_value = head >= a.heads + a.kv_heads;
    const int64_t offset = (block_index() * all + head) * a.head_dim;
    const S* const x = static_cast<const S*>(a.qkv) + offset;
    const float rstd = reciprocal_rms_of_head<V>(x, a.head_dim, a.epsilon, is_there && !is_value);
    if (!is_there) continue;
    const S* const weight = static_cast<const S*>(head < a.heads ? a.query_weight : a.key_weight);
    S* const normed = static_cast<S*>(a.normed) + offset;
    for_packs_of_head<V>(a.head_dim, [&](int64_t column) {
      Pack<S, V> values = load<V>(x + column);
      if (!is_value) {
        const Pack<S, V> factor = load<V>(weight + column);
        COPUS_UNROLL
        for (int v = 0; v < V; ++v) {
          values.values[v] = round_to<S>(widen(values.values[v]) * rstd * widen(factor.values[v]));
        }
      }
      store(normed + column, values);
    });
  }
}

template <class S, int V>
COPUS_KERNEL(head_norm_threads)
head_norm_backward_kernel(const HeadNormBackward a) {
  // Each thread adds to its own columns.
  COPUS_SHARED(float, weight_gradients, head_norm_warps * 2 * widest_normed_head);
  const int warp = thread_index() / warp_size(), warps = block_threads() / warp_size();
  const int64_t of_queries = warp * 2 * a.head_dim, of_keys = of_queries + a.head_dim;
  for_packs_of_head<V>(a.head_dim, [&](int64_t column) {
    COPUS_UNROLL
    for (int v = 0; v < V; ++v) {
      weight_gradients[of_queries + column + v] = 0;
      weight_gradients[of_keys + column + v] = 0;
    }
  });
  const int64_t all = a.heads + 2 * a.kv_heads, normed = a.heads + a.kv_heads;
  const int64_t begin = block_index() * norm_rows_per_partial_sum;
  const int64_t end = begin + norm_rows_per_partial_sum < a.rows ? begin + norm_rows_per_partial_sum : a.rows;
  for (int64_t row = begin; row < end; ++row) {
    for (int64_t first = 0; first < normed; first += warps) {
      const int64_t head = first + warp;
      const bool is_there = head < normed, is_query = head < a.heads;
      const int64_t offset = (row * all + head) * a.head_dim;
      const S* const x = static_cast<const S*>(a.qkv) + offset;
      S* const gradient = static_cast<S*>(a.gradient) + offset;
      const S* const weight = static_cast<const S*>(is_query ? a.query_weight : a.key_weight);
      const int64_t sums = is_query ? of_queries : of_keys;
      const float rstd = reciprocal_rms_of_head<V>(x, a.head_dim, a.epsilon, is_there);
      float products = 0;
      if (is_there) {
        for_packs_of_head<V>(a.head_dim, [&](int64_t column) {
          const Pack<S, V> dy = load<V>(gradient + column), input = load<V>(x + column),
                           factor = load<V>(weight + column);
          COPUS_UNROLL
          for (int v = 0; v < V; ++v) {
            const float product = widen(dy.values[v]) * widen(input.values[v]);
            weight_gradients[sums + column + v] += product * rstd;
            products += product * widen(factor.values[v]);
          }
        });
      }
      const float projection = sum_over_warp(products) / static_cast<float>(a.head_dim) * rstd * rstd;
      if (!is_there) continue;
      for_packs_of_head<V>(a.head_dim, [&](int64_t column) {
        Pack<S, V> dy = load<V>(gradient + column);
        const Pack<S, V> input = load<V>(x + column), factor = load<V>(weight + column);
        COPUS_UNROLL
        for (int v = 0; v < V; ++v) {
          dy.values[v] =
              round_to<S>((widen(dy.values[v]) * widen(factor.values[v]) - widen(input.values[v]) * projection) * rstd);
        }
        store(gradient + column, dy);
      });
    }
  }
  // With wider warps a block has fewer warps, and the remaining sums are zero.
  for (int sum = warp; sum < head_norm_warps; sum += warps) {
    const int64_t to = (block_index() * head_norm_warps + sum) * a.head_dim;
    for_packs_of_head<V>(a.head_dim, [&](int64_t column) {
      COPUS_UNROLL
      for (int v = 0; v < V; ++v) {
        a.query_weight_gradients[to + column + v] = sum == warp ? weight_gradients[of_queries + column + v] : 0;
        a.key_weight_gradients[to + column + v] = sum == warp ? weight_gradients[of_keys + column + v] : 0;
      }
    });
  }
}

inline constexpr int column_sum_lanes = 32;     // rows of a range that a block reads side by side
inline constexpr int column_sum_threads = 256;  // a block reads 8 packs of columns: whole memory sectors

// Sums each lane's rows in ascending order, then the lanes in order. One block processes 8 V columns of a range.
template <class S, int V>
COPUS_KERNEL(column_sum_threads)
column_sums_kernel(const ColumnSums a) {
  constexpr int packs = column_sum_threads / column_sum_lanes, columns = packs * V;
  COPUS_SHARED(float, of_lane, column_sum_lanes* columns);
  const int pack = thread_index() % packs, lane = thread_index() / packs;
  const int64_t first_column = block_index() * columns, column = first_column + pack * V;
  const int64_t range = block_index_y(), begin = range * a.rows_per_range;
  const int64_t end = begin + a.rows_per_range < a.rows ? begin + a.rows_per_range : a.rows;
  const S* const data = static_cast<const S*>(a.data) + column;
  float sums[V];
  COPUS_UNROLL
  for (int v = 0; v < V; ++v) sums[v] = 0;
  if (column < a.width) {
    constexpr int ahead = 4;
    for (int64_t row = begin + lane; row < end; row += ahead * column_sum_lanes) {
      Pack<S, V> values[ahead];
      COPUS_UNROLL
      for (int i = 0; i < ahead; ++i) {
        if (row + i * column_sum_lanes < end) values[i] = load<V>(data + (row + i * column_sum_lanes) * a.width);
      }
      COPUS_UNROLL
      for (int i = 0; i < ahead; ++i) {
        if (row + i * column_sum_lanes >= end) continue;
        COPUS_UNROLL
        for (int v = 0; v < V; ++v) sums[v] += widen(values[i].values[v]);
      }
    }
  }
  COPUS_UNROLL
  for (int v = 0; v < V; ++v) of_lane[lane * columns + pack * V + v] = sums[v];
  synchronize_block();
  if (thread_index() >= columns || first_column + thread_index() >= a.width) return;
  float sum = 0;
  for (int i = 0; i < column_sum_lanes; ++i) sum += of_lane[i * columns + thread_index()];
  float* const out = a.out + range * a.width + first_column + thread_index();
  *out = a.add ? *out + sum : sum;
}

}  // namespace copus::gpu
