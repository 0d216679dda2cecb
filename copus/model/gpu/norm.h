// RMSNorm with the residual's addition, forward and backward. A block takes whole rows and keeps them in registers, so
// that every operand passes through memory once. Each thread holds up to K packs of V elements of a row.
//
// Bytes per row of n elements of s bytes, which are those of the floor: forward 4 n s, backward 4 n s, and n / 2 more
// for partial sums of the weight's gradient (each 4 n bytes written and read again, one for 16 rows).
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

template <class S, int V, int K>
COPUS_KERNEL(norm_threads)
rms_norm_forward_kernel(const RmsNormForward a) {
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
  float squares = 0;
  COPUS_UNROLL
  for (int k = 0; k < K; ++k) {
    if (norm_column<V>(k) >= a.width) continue;
    COPUS_UNROLL
    for (int v = 0; v < V; ++v) squares += widen(input[k].values[v]) * widen(input[k].values[v]);
  }
  const float rstd = 1.0F / sqrtf(sum_over_block(squares) / static_cast<float>(a.width) + a.epsilon);
  if (thread_index() == 0) a.rstd[block_index()] = rstd;
  const S* const weight = static_cast<const S*>(a.weight);
  S* const normed = static_cast<S*>(a.normed) + first;
  COPUS_UNROLL
  for (int k = 0; k < K; ++k) {
    if (norm_column<V>(k) >= a.width) continue;
    const Pack<S, V> factor = load<V>(weight + norm_column<V>(k));
    COPUS_UNROLL
    for (int v = 0; v < V; ++v) {
      input[k].values[v] = round_to<S>(widen(input[k].values[v]) * rstd * widen(factor.values[v]));
    }
    store(normed + norm_column<V>(k), input[k]);
  }
}

template <class S, int V, int K>
COPUS_KERNEL(norm_threads)
rms_norm_backward_kernel(const RmsNormBackward a) {
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
    // The residual's gradient is loaded with the other operands, so that the reduction does not delay it, where there
    // are enough registers.
    constexpr bool upstream_early = K <= 8;
    Pack<S, V> dy[K], x[K], upstream[K];
    COPUS_UNROLL
    for (int k = 0; k < K; ++k) {
      if (norm_column<V>(k) >= a.width) continue;
      dy[k] = load<V>(output_gradient + norm_column<V>(k));
      x[k] = load<V>(input + norm_column<V>(k));
      if (has_residual && upstream_early) upstream[k] = load<V>(residual_gradient + norm_column<V>(k));
    }
    const float rstd = a.rstd[row];
    float products = 0;
    COPUS_UNROLL
    for (int k = 0; k < K; ++k) {
      if (norm_column<V>(k) >= a.width) continue;
      COPUS_UNROLL
      for (int v = 0; v < V; ++v) {
        const float product = widen(dy[k].values[v]) * widen(x[k].values[v]);
        weight_gradient[k][v] += product * rstd;
        products += product * widen(factor[k].values[v]);
      }
    }
    const float projection = sum_over_block(products) / static_cast<float>(a.width) * rstd * rstd;
    S* const input_gradient = static_cast<S*>(a.input_gradient) + row * a.width;
    COPUS_UNROLL
    for (int k = 0; k < K; ++k) {
      if (norm_column<V>(k) >= a.width) continue;
      if (has_residual && !upstream_early) upstream[k] = load<V>(residual_gradient + norm_column<V>(k));
      COPUS_UNROLL
      for (int v = 0; v < V; ++v) {
        float dx = (widen(dy[k].values[v]) * widen(factor[k].values[v]) - widen(x[k].values[v]) * projection) * rstd;
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

inline constexpr int column_sum_lanes = 32;     // number of rows of a range that a block reads side by side
inline constexpr int column_sum_threads = 256;  // gives a block 8 packs of columns: whole sectors of memory

// Sums each lane's rows in ascending order, then the lanes in order. One block takes 8 V columns of a range.
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
