// Launches the kernels: chooses the kernel and the numbers of threads and blocks. This is the only source that nvcc or
// hipcc compiles, and it needs only the platform's runtime.
#include <algorithm>
#include <cstdint>

#include "copus/base/error.h"
#include "copus/model/gpu/activations.h"
#include "copus/model/gpu/cross_entropy.h"
#include "copus/model/gpu/embedding.h"
#include "copus/model/gpu/kernels.h"
#include "copus/model/gpu/launch.h"
#include "copus/model/gpu/norm.h"
#include "copus/model/gpu/optimizer.h"

namespace copus::gpu {
namespace {

constexpr int64_t thread_multiple = 64;  // makes warps whole on every device

int64_t divide_up(int64_t a, int64_t b) { return (a + b - 1) / b; }

// Returns the smallest multiple of thread_multiple that processes `items` in as few rounds as `most` threads.
int threads_for(int64_t items, int64_t most) {
  const int64_t rounds = std::max<int64_t>(1, divide_up(items, most));
  const int64_t threads = divide_up(divide_up(items, rounds), thread_multiple) * thread_multiple;
  return static_cast<int>(std::max(threads, thread_multiple));
}

// Returns whether all pointers are aligned to 16 bytes. Null counts as aligned.
template <class... Pointers>
bool aligned(Pointers... pointers) {
  return ((reinterpret_cast<uintptr_t>(pointers) % 16 == 0) && ...);
}

// Calls f<S, V> with the storage type S and the number V of elements per access: 16 bytes if rows of `width` elements
// start at multiples of 16 bytes, otherwise one element.
template <class F>
void with_packs(Storage storage, int64_t width, bool is_aligned, F f) {
  if (storage == Storage::float32) {
    constexpr int V = vector_width<float>;
    if (is_aligned && width % V == 0) return f.template operator()<float, V>();
    return f.template operator()<float, 1>();
  }
  constexpr int V = vector_width<BFloat16>;
  if (is_aligned && width % V == 0) return f.template operator()<BFloat16, V>();
  f.template operator()<BFloat16, 1>();
}

// Calls f<S, V, K>(threads) with the smallest number K of packs per thread with which norm_threads threads cover a row.
template <class S, int V, int K, class F>
void with_norm_packs(int64_t width, F f) {
  const int64_t packs = divide_up(width, V);
  if constexpr (K * V * norm_threads < widest_norm) {
    if (packs > int64_t{K} * norm_threads / 2) return with_norm_packs<S, V, 2 * K>(width, f);
  }
  f.template operator()<S, V, K>(threads_for(divide_up(packs, K), norm_threads));
}

template <class F>
void with_norm(Storage storage, int64_t width, bool is_aligned, F f) {
  COPUS_CHECK(width <= widest_norm, "rows of ", width);
  with_packs(storage, width, is_aligned, [&]<class S, int V>() { with_norm_packs<S, V, 1>(width, f); });
}

}  // namespace

void norm_forward(const NormForward& a, void* stream) {
  with_norm(a.storage, a.width, aligned(a.residual, a.delta, a.weight, a.bias, a.sum, a.normed),
            [&]<class S, int V, int K>(int threads) {
              const auto start = [&]<bool is_layer>() {
                launch(norm_forward_kernel<S, V, K, is_layer>, {a.rows}, threads, stream, a);
              };
              a.bias != nullptr ? start.template operator()<true>() : start.template operator()<false>();
            });
}

void norm_backward(const NormBackward& a, void* stream) {
  with_norm(a.storage, a.width, aligned(a.output_gradient, a.input, a.weight, a.residual_gradient, a.input_gradient),
            [&]<class S, int V, int K>(int threads) {
              const auto start = [&]<bool is_layer>() {
                launch(norm_backward_kernel<S, V, K, is_layer>, {divide_up(a.rows, norm_rows_per_partial_sum)}, threads,
                       stream, a);
              };
              a.is_layer ? start.template operator()<true>() : start.template operator()<false>();
            });
}

void head_norm_forward(const HeadNormForward& a, void* stream) {
  with_packs(a.storage, a.head_dim, aligned(a.qkv, a.query_weight, a.key_weight, a.normed),
             [&]<class S, int V>() { launch(head_norm_forward_kernel<S, V>, {a.rows}, head_norm_threads, stream, a); });
}

void head_norm_backward(const HeadNormBackward& a, void* stream) {
  COPUS_CHECK(a.head_dim <= widest_normed_head, "heads of ", a.head_dim);
  with_packs(a.storage, a.head_dim, aligned(a.qkv, a.query_weight, a.key_weight, a.gradient), [&]<class S, int V>() {
    launch(head_norm_backward_kernel<S, V>, {divide_up(a.rows, norm_rows_per_partial_sum)}, head_norm_threads, stream,
           a);
  });
}

void column_sums(const ColumnSums& a, void* stream) {
  with_packs(a.storage, a.width, aligned(a.data), [&]<class S, int V>() {
    const int64_t columns = column_sum_threads / column_sum_lanes * V;
    launch(column_sums_kernel<S, V>, {divide_up(a.width, columns), divide_up(a.rows, a.rows_per_range)},
           column_sum_threads, stream, a);
  });
}

void rotary(const Rotary& a, void* stream) {
  COPUS_CHECK(a.head_dim % 2 == 0 && a.head_dim <= widest_rotary_head, "heads of ", a.head_dim);
  const int64_t half = a.head_dim / 2;
  const bool rows_aligned = a.row_stride % vector_width<BFloat16> == 0;
  with_packs(a.storage, half, aligned(a.data) && rows_aligned, [&]<class S, int V>() {
    const int64_t rows_of_block = rotary_threads / (half / V);
    launch(rotary_kernel<S, V>, {divide_up(a.rows, rows_of_block), divide_up(a.heads, rotary_heads)}, rotary_threads,
           stream, a);
  });
}

namespace {

// Calls f<Function, is_gated>().
template <class F>
void with_activation(ActivationFunction function, bool is_gated, F f) {
  const auto with_gate = [&]<class Function>() {
    is_gated ? f.template operator()<Function, true>() : f.template operator()<Function, false>();
  };
  switch (function) {
    case ActivationFunction::silu:
      return with_gate.template operator()<Sigmoidal<SiluCurve>>();
    case ActivationFunction::gelu_tanh:
      return with_gate.template operator()<Sigmoidal<GeluTanhCurve>>();
    case ActivationFunction::gelu:
      return with_gate.template operator()<Gelu>();
  }
}

}  // namespace

void activation_forward(const ActivationForward& a, void* stream) {
  with_packs(a.storage, a.width, aligned(a.input, a.activation), [&]<class S, int V>() {
    with_activation(a.function, a.is_gated, [&]<class Function, bool is_gated>() {
      launch(activation_forward_kernel<S, V, Function, is_gated>, {a.rows},
             threads_for(a.width / V, activation_threads), stream, a);
    });
  });
}

void activation_backward(const ActivationBackward& a, void* stream) {
  with_packs(a.storage, a.width, aligned(a.input, a.activation_gradient), [&]<class S, int V>() {
    with_activation(a.function, a.is_gated, [&]<class Function, bool is_gated>() {
      launch(activation_backward_kernel<S, V, Function, is_gated>, {a.rows},
             threads_for(a.width / V, activation_threads), stream, a);
    });
  });
}

void embedding_part(const EmbeddingPart& a, void* stream) {
  with_packs(a.storage, a.width, aligned(a.table, a.out), [&]<class S, int V>() {
    launch(embedding_part_kernel<S, V>, {a.rows}, threads_for(a.width / V, embedding_threads), stream, a);
  });
}

void add_embedding_gradient(const EmbeddingGradient& a, void* stream) {
  launch(sort_embedding_tiles_kernel, {divide_up(a.rows, embedding_sort_tile)}, embedding_sort_tile / 2, stream, a);
  launch(merge_embedding_tiles_kernel, {divide_up(a.rows * merge_lanes, embedding_threads)}, embedding_threads, stream,
         a);
  const int64_t tiles = divide_up(a.rows, embedding_tile);
  with_packs(a.storage, a.width, aligned(a.output_gradient), [&]<class S, int V>() {
    const int threads = threads_for(a.width / V, embedding_threads);
    launch(sum_embedding_tiles_kernel<S, V>, {tiles, divide_up(a.width / V, threads)}, threads, stream, a);
  });
  launch(join_embedding_tiles_kernel, {tiles}, embedding_threads, stream, a);
}

void softmax_statistics(const SoftmaxStatistics& a, void* stream) {
  with_packs(a.storage, a.vocab, aligned(a.logits), [&]<class S, int V>() {
    const auto kernel = a.softcap > 0 ? softmax_statistics_kernel<S, V, true> : softmax_statistics_kernel<S, V, false>;
    launch(kernel, {a.rows}, threads_for(a.vocab / V, cross_entropy_threads), stream, a);
  });
}

void cross_entropy(const CrossEntropy& a, void* stream) {
  with_packs(a.storage, a.vocab, aligned(a.logits), [&]<class S, int V>() {
    const auto kernel = a.softcap > 0 ? cross_entropy_kernel<S, V, true> : cross_entropy_kernel<S, V, false>;
    launch(kernel, {a.rows}, threads_for(a.vocab / V, cross_entropy_threads), stream, a);
  });
  launch(add_losses_kernel, {1}, threads_for(a.rows, cross_entropy_threads), stream, a);
}

void adamw(const AdamW& a, void* stream) {
  const auto start = [&]<int V>() {
    launch(adamw_kernel<V>, {divide_up(a.count, int64_t{flat_threads} * V)}, flat_threads, stream, a);
  };
  constexpr int V = vector_width<float>;
  const bool packs = a.count % V == 0 && aligned(a.state.master, a.state.exp_avg, a.state.exp_avg_sq, a.gradient);
  packs ? start.template operator()<V>() : start.template operator()<1>();
}

void signum(const Signum& a, void* stream) {
  const auto start = [&]<int V>() {
    launch(signum_kernel<V>, {divide_up(a.count, int64_t{flat_threads} * V)}, flat_threads, stream, a);
  };
  constexpr int V = vector_width<float>;
  const bool packs = a.count % V == 0 && aligned(a.master, a.momentum, a.gradient);
  packs ? start.template operator()<V>() : start.template operator()<1>();
}

void round_to_bfloat16(const float* from, void* to, int64_t count, void* stream) {
  const Rounding a{from, static_cast<BFloat16*>(to), count};
  const auto start = [&]<int V>() {
    launch(round_kernel<V>, {divide_up(count, int64_t{flat_threads} * V)}, flat_threads, stream, a);
  };
  constexpr int V = vector_width<BFloat16>;
  const bool packs = count % V == 0 && aligned(from, to);
  packs ? start.template operator()<V>() : start.template operator()<1>();
}

void add_squared_norm(const SquaredNorm& a, void* stream) {
  if (a.begin >= a.end) return;
  // Enough blocks to fill any device. The result does not depend on their number.
  constexpr int64_t most_blocks = 1024;
  const int64_t tiles = divide_up(a.end, squared_norm_tile) - a.begin / squared_norm_tile;
  const Grid grid{std::min(tiles, most_blocks)};
  constexpr int V = vector_width<float>;
  aligned(a.values) ? launch(squared_norm_kernel<V>, grid, squared_norm_threads, stream, a)
                    : launch(squared_norm_kernel<1>, grid, squared_norm_threads, stream, a);
}

}  // namespace copus::gpu
