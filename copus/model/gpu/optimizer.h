// Kernels over flat ranges of parameters: optimizers, rounding, and squared norms. Bytes per element, all minimal:
// AdamW 28 (four reads, three writes), Signum 20 (three reads, two writes), rounding 6, squared norms 4.
#pragma once

#include "copus/model/gpu/device_code.h"
#include "copus/model/gpu/kernels.h"

namespace copus::gpu {

inline constexpr int flat_threads = 256;

template <int V>
COPUS_KERNEL(flat_threads)
adamw_kernel(const AdamW a) {
  const int64_t i = (block_index() * block_threads() + thread_index()) * V;
  if (i >= a.count) return;
  const Pack<float, V> gradients = load<V>(a.gradient + i);
  Pack<float, V> means = load<V>(a.state.exp_avg + i), variances = load<V>(a.state.exp_avg_sq + i);
  Pack<float, V> masters = load<V>(a.state.master + i);
  COPUS_UNROLL
  for (int v = 0; v < V; ++v) {
    const float gradient = gradients.values[v] * a.gradient_scale;
    const float mean = means.values[v] * a.beta1 + gradient * a.new1;
    const float variance = variances.values[v] * a.beta2 + gradient * gradient * a.new2;
    means.values[v] = mean;
    variances.values[v] = variance;
    masters.values[v] = masters.values[v] * a.keep - a.step * mean / (sqrtf(variance) * a.root_correction + a.epsilon);
  }
  store(a.state.exp_avg + i, means);
  store(a.state.exp_avg_sq + i, variances);
  store(a.state.master + i, masters);
}

template <int V>
COPUS_KERNEL(flat_threads)
signum_kernel(const Signum a) {
  const int64_t i = (block_index() * block_threads() + thread_index()) * V;
  if (i >= a.count) return;
  const Pack<float, V> gradients = load<V>(a.gradient + i);
  Pack<float, V> momenta = load<V>(a.momentum + i), masters = load<V>(a.master + i);
  COPUS_UNROLL
  for (int v = 0; v < V; ++v) {
    const float momentum = momenta.values[v] * a.beta + gradients.values[v] * a.gradient_scale * a.new_share;
    const float sign = static_cast<float>((momentum > 0) - (momentum < 0));
    momenta.values[v] = momentum;
    masters.values[v] = masters.values[v] * a.keep - a.step * sign;
  }
  store(a.momentum + i, momenta);
  store(a.master + i, masters);
}

struct Rounding {
  const float* from;
  BFloat16* to;
  int64_t count;
};

template <int V>
COPUS_KERNEL(flat_threads)
round_kernel(const Rounding a) {
  const int64_t i = (block_index() * block_threads() + thread_index()) * V;
  if (i >= a.count) return;
  constexpr int half = V > 4 ? 4 : V;
  Pack<BFloat16, V> rounded;
  COPUS_UNROLL
  for (int first = 0; first < V; first += half) {
    const Pack<float, half> values = load<half>(a.from + i + first);
    COPUS_UNROLL
    for (int v = 0; v < half; ++v) rounded.values[first + v] = round_to<BFloat16>(values.values[v]);
  }
  store(a.to + i, rounded);
}

inline constexpr int not_numbers = 71, positive_infinities = 69;  // indices of counts behind the digits of an ExactSum

// Five neighbouring words of an ExactSum, enough for a sum of nonnegative doubles of similar size. A double covers
// three words, and all doubles must be within a factor of 2^32 of the first double.
struct WordSum {
  static constexpr int size = 5;
  int first;  // index of the first word; -1: no double yet
  int64_t words[size];
};

COPUS_DEVICE void flush(const WordSum& sum, int64_t* words) {
  if (sum.first < 0) return;
  COPUS_UNROLL
  for (int i = 0; i < WordSum::size; ++i) {
    if (sum.words[i] != 0) atomic_add(words + sum.first + i, sum.words[i]);
  }
}

// Adds `value` exactly, like ExactSum::add(double): to `sum` if it is within the sum's words, otherwise to `words`.
COPUS_DEVICE void add_exactly(double value, WordSum& sum, int64_t* words) {
  const uint64_t bits = double_to_bits(value);
  const uint64_t fraction = bits & ((uint64_t{1} << 52) - 1);
  const int exponent = static_cast<int>(bits >> 52) & 0x7FF;
  if (bits == 0) return;
  if (exponent == 0x7FF) return atomic_add(words + (fraction != 0 ? not_numbers : positive_infinities), 1);
  const uint64_t significand = exponent == 0 ? fraction : fraction | (uint64_t{1} << 52);
  const int shift = exponent == 0 ? 0 : exponent - 1, digit = shift / 32;
  const uint64_t low = (significand & 0xFFFFFFFF) << (shift % 32);
  const uint64_t high = ((significand >> 32) << (shift % 32)) + (low >> 32);
  const int64_t terms[3] = {static_cast<int64_t>(low & 0xFFFFFFFF), static_cast<int64_t>(high & 0xFFFFFFFF),
                            static_cast<int64_t>(high >> 32)};
  if (sum.first < 0 || digit < sum.first || digit > sum.first + WordSum::size - 3) {
    flush(sum, words);
    sum = WordSum{digit > 0 ? digit - 1 : 0, {}};
  }
  COPUS_UNROLL
  for (int place = 0; place <= WordSum::size - 3; ++place) {
    if (digit != sum.first + place) continue;
    COPUS_UNROLL
    for (int i = 0; i < 3; ++i) sum.words[place + i] += terms[i];
  }
}

inline constexpr int squared_norm_threads = 64;
inline constexpr int64_t squared_norm_tile = squared_norm_threads * squared_norm_block;

// Sums the squares of at most 64 values in the order of the CPU's widest vectors (cpu/elementwise.h with AVX-512): sums
// in sixteen lanes, then adds the upper eight lanes to the lower eight, and so on.
COPUS_DEVICE double sum_squares(const float* values, int count) {
  constexpr int lanes = 8;
  double low[lanes], high[lanes];
  COPUS_UNROLL
  for (int lane = 0; lane < lanes; ++lane) low[lane] = high[lane] = 0;
  for (int i = 0; i < count; i += 2 * lanes) {
    COPUS_UNROLL
    for (int lane = 0; lane < lanes; ++lane) {
      const float x = i + lane < count ? values[i + lane] : 0.0F;
      const float y = i + lanes + lane < count ? values[i + lanes + lane] : 0.0F;
      low[lane] += static_cast<double>(x * x);
      high[lane] += static_cast<double>(y * y);
    }
  }
  double sum = 0;
  COPUS_UNROLL
  for (int lane = 0; lane < lanes; ++lane) sum += low[lane] + high[lane];
  return sum;
}

// Adds squared norms. A block reads tiles of 64 x 64 values into shared memory, and each thread sums the squares of 64
// neighbours. Finally the threads add up their words, and one thread adds the result atomically.
template <int V>
COPUS_KERNEL(squared_norm_threads)
squared_norm_kernel(const SquaredNorm a) {
  constexpr int block = static_cast<int>(squared_norm_block), row = block + 1;  // threads begin in different banks
  COPUS_SHARED(float, values, squared_norm_threads* row);
  const int64_t end_tile = (a.end + squared_norm_tile - 1) / squared_norm_tile;
  WordSum sum{-1, {}};
  for (int64_t tile = a.begin / squared_norm_tile + block_index(); tile < end_tile; tile += grid_blocks()) {
    const int64_t first = tile * squared_norm_tile;
    synchronize_block();  // other threads may still read the previous tile
    constexpr int ahead = 8;
    for (int begin = 0; begin < squared_norm_tile; begin += ahead * squared_norm_threads * V) {
      Pack<float, V> packs[ahead];
      COPUS_UNROLL
      for (int k = 0; k < ahead; ++k) {
        const int64_t i = first + begin + (k * squared_norm_threads + thread_index()) * V;
        if (i >= a.begin && i + V <= a.end) {
          packs[k] = load<V>(a.values + i);
        } else {
          COPUS_UNROLL
          for (int v = 0; v < V; ++v) packs[k].values[v] = i + v >= a.begin && i + v < a.end ? a.values[i + v] : 0.0F;
        }
      }
      COPUS_UNROLL
      for (int k = 0; k < ahead; ++k) {
        const int i = begin + (k * squared_norm_threads + thread_index()) * V;
        COPUS_UNROLL
        for (int v = 0; v < V; ++v) values[i / block * row + i % block + v] = packs[k].values[v];
      }
    }
    synchronize_block();
    // The range of this thread's 64 values within begin .. end.
    const int64_t offset = first + thread_index() * block;
    const int from = static_cast<int>(a.begin > offset ? a.begin - offset : 0);
    const int to = static_cast<int>(a.end < offset + block ? a.end - offset : block);
    if (from < to) add_exactly(sum_squares(&values[thread_index() * row + from], to - from), sum, a.words);
  }
  // Each iteration adds up the threads' sums that begin at the same word, from the highest word down.
  for (;;) {
    const int first = reduce_block(sum.first, [](int x, int y) { return x > y ? x : y; });
    if (first < 0) return;
    WordSum total{first, {}};
    COPUS_UNROLL
    for (int i = 0; i < WordSum::size; ++i) {
      total.words[i] = sum_over_block(sum.first == first ? sum.words[i] : int64_t{0});
    }
    if (thread_index() == 0) flush(total, a.words);
    if (sum.first == first) sum.first = -1;
  }
}

}  // namespace copus::gpu
