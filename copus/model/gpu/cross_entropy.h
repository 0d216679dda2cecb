// Softmax cross-entropy over whole rows or over some of their columns, one block per row. The first pass finds the
// largest logit and the sum of exponentials (Milakov & Gimelshein 2018), the second overwrites the logits with their
// gradient. The minimum of memory traffic is one read and one write of the logits. If the logits of a call fit into the
// level-2 cache, the second pass reads them from there.
#pragma once

#include "copus/model/gpu/device_code.h"
#include "copus/model/gpu/kernels.h"

namespace copus::gpu {

inline constexpr int cross_entropy_threads = 512;

struct SoftmaxSum {
  float largest, sum;  // sum of exp(x - largest)
};

COPUS_DEVICE SoftmaxSum shuffle_xor(SoftmaxSum value, int bits) {
  return {shuffle_xor(value.largest, bits), shuffle_xor(value.sum, bits)};
}

// Computes exp(x - largest). Also correct before the first logit, when both may be minus infinity.
COPUS_DEVICE float exponential_below(float x, float largest) { return x == largest ? 1.0F : expf(x - largest); }

COPUS_DEVICE SoftmaxSum combine(SoftmaxSum a, SoftmaxSum b) {
  const float largest = fmaxf(a.largest, b.largest);
  return {largest, a.sum * exponential_below(a.largest, largest) + b.sum * exponential_below(b.largest, largest)};
}

// The soft-cap of logits: cap tanh(x / cap).
template <bool is_there>
struct SoftCap {
  float cap, inverse;
  explicit COPUS_DEVICE SoftCap(float limit) : cap(limit), inverse(is_there ? 1.0F / limit : 0.0F) {}

  COPUS_DEVICE float of(float x) const { return is_there ? cap * tanhf(x * inverse) : x; }
  // Returns product * the derivative at the x with this capped value.
  COPUS_DEVICE float times_slope(float product, float capped) const {
    if (!is_there) return product;
    const float share = capped * inverse;
    return product * (1.0F - share * share);
  }
};

// Computes the softmax statistics of the row's columns for every thread of the block.
template <class S, int V, bool is_capped>
COPUS_DEVICE SoftmaxSum softmax_of_row(const S* logits, int64_t columns, SoftCap<is_capped> cap) {
  SoftmaxSum softmax{-INFINITY, 0};
  const auto add = [&softmax, cap](const Pack<S, V>& pack) {
    float values[V];
    COPUS_UNROLL
    for (int v = 0; v < V; ++v) values[v] = cap.of(widen(pack.values[v]));
    float largest = softmax.largest;
    COPUS_UNROLL
    for (int v = 0; v < V; ++v) largest = fmaxf(largest, values[v]);
    softmax.sum *= exponential_below(softmax.largest, largest);
    // Minus infinity adds 0, whatever the largest logit is. Infinity and NaN make the sum NaN.
    const float origin = largest == -INFINITY ? 0.0F : largest;
    COPUS_UNROLL
    for (int v = 0; v < V; ++v) softmax.sum += expf(values[v] - origin);
    softmax.largest = largest;
  };
  constexpr int ahead = 4;
  const int64_t step = block_threads() * V;
  int64_t i = thread_index() * V;
  for (; i + (ahead - 1) * step < columns; i += ahead * step) {
    Pack<S, V> packs[ahead];
    COPUS_UNROLL
    for (int k = 0; k < ahead; ++k) packs[k] = load<V>(logits + i + k * step);
    COPUS_UNROLL
    for (int k = 0; k < ahead; ++k) add(packs[k]);
  }
  for (; i < columns; i += step) add(load<V>(logits + i));
  return reduce_block(softmax, [](SoftmaxSum a, SoftmaxSum b) { return combine(a, b); });
}

template <class S, int V, bool is_capped>
COPUS_KERNEL(cross_entropy_threads)
softmax_statistics_kernel(const SoftmaxStatistics a) {
  const int64_t row = block_index(), target = a.targets[row];
  double* const statistics = a.statistics + row * 3;
  if (target == ignored_target) {
    if (thread_index() < 3) statistics[thread_index()] = 0;
    return;
  }
  const S* const logits = static_cast<const S*>(a.logits) + row * a.vocab;
  const SoftCap<is_capped> cap(a.softcap);
  const SoftmaxSum softmax = softmax_of_row<S, V>(logits, a.vocab, cap);
  if (thread_index() != 0) return;
  const int64_t column = target - a.first_token;
  const bool here = column >= 0 && column < a.vocab;
  statistics[0] = static_cast<double>(softmax.largest);
  statistics[1] = static_cast<double>(softmax.sum);
  statistics[2] = here ? static_cast<double>(cap.of(widen(logits[column]))) : 0.0;
}

struct RowSoftmax {
  float largest, sum, target_logit;
};

// Computes the softmax of a whole row from the statistics of its parts, in the order of the parts.
COPUS_DEVICE RowSoftmax combine_parts(const CrossEntropy& a, int64_t row) {
  const auto part = [&a, row](int64_t i) { return a.statistics + (i * a.rows + row) * 3; };
  double largest = part(0)[0], sum = 0, target_logit = 0;
  for (int64_t i = 1; i < a.parts; ++i) largest = part(i)[0] > largest ? part(i)[0] : largest;
  for (int64_t i = 0; i < a.parts; ++i) {
    sum += part(i)[1] * exp(part(i)[0] - largest);
    target_logit += part(i)[2];
  }
  return {static_cast<float>(largest), static_cast<float>(sum), static_cast<float>(target_logit)};
}

template <class S, int V, bool is_capped>
COPUS_KERNEL(cross_entropy_threads)
cross_entropy_kernel(const CrossEntropy a) {
  const int64_t row = block_index(), step = block_threads() * V;
  S* const logits = static_cast<S*>(a.logits) + row * a.vocab;
  if (a.targets[row] == ignored_target) {
    if (thread_index() == 0) a.losses[row] = 0;
    if (!a.gradient) return;
    Pack<S, V> zeros;
    COPUS_UNROLL
    for (int v = 0; v < V; ++v) zeros.values[v] = round_to<S>(0);
    for (int64_t i = thread_index() * V; i < a.vocab; i += step) store(logits + i, zeros);
    return;
  }
  const int64_t target = a.targets[row] - a.first_token;
  const SoftCap<is_capped> cap(a.softcap);
  COPUS_SHARED(RowSoftmax, of_row, 1);
  if (a.statistics != nullptr) {
    if (thread_index() == 0) of_row[0] = combine_parts(a, row);
  } else {
    const SoftmaxSum softmax = softmax_of_row<S, V>(logits, a.vocab, cap);
    if (thread_index() == 0) of_row[0] = RowSoftmax{softmax.largest, softmax.sum, cap.of(widen(logits[target]))};
  }
  synchronize_block();
  const RowSoftmax softmax = of_row[0];
  if (thread_index() == 0) {
    a.losses[row] = log(static_cast<double>(softmax.sum)) + static_cast<double>(softmax.largest - softmax.target_logit);
  }
  if (!a.gradient) return;
  const float scale = a.loss_scale / softmax.sum;
  for (int64_t i = thread_index() * V; i < a.vocab; i += step) {
    Pack<S, V> pack = load<V>(logits + i);
    COPUS_UNROLL
    for (int v = 0; v < V; ++v) {
      const float value = cap.of(widen(pack.values[v]));
      pack.values[v] = round_to<S>(cap.times_slope(expf(value - softmax.largest) * scale, value));
    }
    store(logits + i, pack);
    if (target >= i && target < i + V) {
      const float probability = expf(softmax.target_logit - softmax.largest) / softmax.sum;
      logits[target] = round_to<S>(cap.times_slope((probability - 1.0F) * a.loss_scale, softmax.target_logit));
    }
  }
}

// Adds up the losses in one block.
static COPUS_KERNEL(cross_entropy_threads) add_losses_kernel(const CrossEntropy a) {
  double sum = 0;
  for (int64_t row = thread_index(); row < a.rows; row += block_threads()) sum += a.losses[row];
  sum = sum_over_block(sum);
  if (thread_index() == 0) *a.loss_sum += sum;
}

}  // namespace copus::gpu
