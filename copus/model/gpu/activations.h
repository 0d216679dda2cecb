// Rotary embedding and activations. Every element is read once and written once, which is the least possible memory
// traffic. Rotary embedding in bfloat16 thus moves 4 bytes per rotated element. Each thread also reads the angles, 8
// bytes per pair of elements. It reads them once for eight heads, and usually from a cache.
#pragma once

#include "copus/model/gpu/device_code.h"
#include "copus/model/gpu/kernels.h"

namespace copus::gpu {

inline constexpr int rotary_threads = 256;
inline constexpr int rotary_heads = 8;  // heads that a thread rotates by the same angles

// Each thread rotates V neighbouring pairs in some heads of a row. Blocks cover rows along x and heads along y.
template <class S, int V>
COPUS_KERNEL(rotary_threads)
rotary_kernel(const Rotary a) {
  const int half = static_cast<int>(a.head_dim / 2), packs = half / V;
  const int rows_of_block = block_threads() / packs;
  const int pair = thread_index() % packs * V;
  const int64_t row = block_index() * rows_of_block + thread_index() / packs;
  if (thread_index() >= rows_of_block * packs || row >= a.rows) return;

  const int64_t angle = row % a.angles * half + pair;
  float cosine[V], sine[V];
  COPUS_UNROLL
  for (int v = 0; v < V; ++v) {
    cosine[v] = a.cosine[angle + v];
    sine[v] = a.backward ? -a.sine[angle + v] : a.sine[angle + v];
  }
  S* const pairs = static_cast<S*>(a.data) + row * a.row_stride + pair;
  const int64_t first_head = block_index_y() * rotary_heads;
  constexpr int ahead = 2;
  for (int group = 0; group < rotary_heads; group += ahead) {
    Pack<S, V> first[ahead], second[ahead];
    COPUS_UNROLL
    for (int i = 0; i < ahead; ++i) {
      const int64_t head = first_head + group + i;
      if (head >= a.heads) continue;
      first[i] = load<V>(pairs + head * a.head_dim);
      second[i] = load<V>(pairs + head * a.head_dim + half);
    }
    COPUS_UNROLL
    for (int i = 0; i < ahead; ++i) {
      const int64_t head = first_head + group + i;
      if (head >= a.heads) continue;
      COPUS_UNROLL
      for (int v = 0; v < V; ++v) {
        const float x = widen(first[i].values[v]), y = widen(second[i].values[v]);
        first[i].values[v] = round_to<S>(x * cosine[v] - y * sine[v]);
        second[i].values[v] = round_to<S>(y * cosine[v] + x * sine[v]);
      }
      store(pairs + head * a.head_dim, first[i]);
      store(pairs + head * a.head_dim + half, second[i]);
    }
  }
}

inline constexpr int activation_threads = 256;

// The value of an activation function and its derivative.
struct Activated {
  float value, slope;
};

// Functions x sigmoid(z(x)): SiLU with z = x, and GELU's tanh approximation with z = 2 sqrt(2 / pi) (x + 0.044715 x^3),
// since (1 + tanh(z / 2)) / 2 = sigmoid(z). A Curve gives z and the derivative z'(x).
template <class Curve>
struct Sigmoidal {
  static COPUS_DEVICE float value(float x) { return x / (1.0F + expf(-Curve::exponent(x))); }
  static COPUS_DEVICE Activated with_slope(float x) {
    const float sigmoid = 1.0F / (1.0F + expf(-Curve::exponent(x))), value = x * sigmoid;
    return {value, sigmoid + Curve::times_slope(value * (1.0F - sigmoid), x)};
  }
};

struct SiluCurve {
  static COPUS_DEVICE float exponent(float x) { return x; }
  static COPUS_DEVICE float times_slope(float product, float /*x*/) { return product; }
};

struct GeluTanhCurve {
  static constexpr float scale = 1.5957691216057307F, cube = 0.044715F;  // 2 sqrt(2 / pi)
  static COPUS_DEVICE float exponent(float x) { return x * (x * x * cube + 1.0F) * scale; }
  static COPUS_DEVICE float times_slope(float product, float x) {
    return product * (x * x * (3.0F * cube) + 1.0F) * scale;
  }
};

// Exact GELU: x Phi(x), where Phi is the normal distribution function.
struct Gelu {
  static COPUS_DEVICE float share(float x) { return 0.5F * erfcf(x * -0.70710678F); }
  static COPUS_DEVICE float value(float x) { return x * share(x); }
  static COPUS_DEVICE Activated with_slope(float x) {
    const float phi = share(x);
    return {x * phi, phi + x * expf(-0.5F * x * x) * 0.39894228F};  // 1 / sqrt(2 pi)
  }
};

// One block per row.
template <class S, int V, class Function, bool is_gated>
COPUS_KERNEL(activation_threads)
activation_forward_kernel(const ActivationForward a) {
  const S* const inputs = static_cast<const S*>(a.input) + block_index() * (is_gated ? 2 : 1) * a.width;
  S* const activations = static_cast<S*>(a.activation) + block_index() * a.width;
  for (int64_t i = thread_index() * V; i < a.width; i += block_threads() * V) {
    const Pack<S, V> input = load<V>(inputs + i);
    Pack<S, V> up;
    if constexpr (is_gated) up = load<V>(inputs + a.width + i);
    Pack<S, V> activation;
    COPUS_UNROLL
    for (int v = 0; v < V; ++v) {
      const float x = widen(input.values[v]);
      float value = Function::value(x);
      if constexpr (is_gated) value *= widen(up.values[v]);
      activation.values[v] = round_to<S>(value);
    }
    store(activations + i, activation);
  }
}

template <class S, int V, class Function, bool is_gated>
COPUS_KERNEL(activation_threads)
activation_backward_kernel(const ActivationBackward a) {
  S* const inputs = static_cast<S*>(a.input) + block_index() * (is_gated ? 2 : 1) * a.width;
  S* const ups = inputs + a.width;
  S* const gradients = static_cast<S*>(a.activation_gradient) + block_index() * a.width;
  for (int64_t i = thread_index() * V; i < a.width; i += block_threads() * V) {
    Pack<S, V> input = load<V>(inputs + i), gradient = load<V>(gradients + i), up;
    if constexpr (is_gated) up = load<V>(ups + i);
    COPUS_UNROLL
    for (int v = 0; v < V; ++v) {
      const float x = widen(input.values[v]), d = widen(gradient.values[v]);
      const auto [value, slope] = Function::with_slope(x);
      if constexpr (is_gated) {
        const float u = widen(up.values[v]);
        input.values[v] = round_to<S>(d * u * slope);
        up.values[v] = round_to<S>(d * value);
        gradient.values[v] = round_to<S>(value * u);
      } else {
        input.values[v] = round_to<S>(d * slope);
        gradient.values[v] = round_to<S>(value);
      }
    }
    store(inputs + i, input);
    if constexpr (is_gated) store(ups + i, up);
    store(gradients + i, gradient);
  }
}

}  // namespace copus::gpu
