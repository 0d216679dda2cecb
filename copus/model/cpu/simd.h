// Vectors for the instruction set of this compilation, based on the vector extensions of GCC and clang. The namespace
// contains the instruction set's name, so that code for different instruction sets is never merged by the linker.
#pragma once

#include <cstdint>

#include "copus/model/cpu/kernels.h"

#define COPUS_INLINE inline __attribute__((always_inline))
#define COPUS_INLINE_LAMBDA __attribute__((always_inline))

#if defined(__AVX512F__) && defined(__AVX512BW__)
#define COPUS_ISA avx512
#define COPUS_VECTOR_BYTES 64
#elif defined(__AVX2__)
#define COPUS_ISA avx2
#define COPUS_VECTOR_BYTES 32
#else
#define COPUS_ISA baseline
#define COPUS_VECTOR_BYTES 16
#endif

namespace copus::cpu::COPUS_ISA {

template <class C>
struct Simd;

template <>
struct Simd<float> {
  using Vector = float __attribute__((vector_size(COPUS_VECTOR_BYTES)));
  using Unaligned = float __attribute__((vector_size(COPUS_VECTOR_BYTES), aligned(4), may_alias));
  using Integer = int32_t __attribute__((vector_size(COPUS_VECTOR_BYTES)));
  static constexpr int width = COPUS_VECTOR_BYTES / 4;
  // exp_low: the logarithm of the smallest normal number; for x below it, e^x is rounded to 0. exp_high: from this x
  // on, e^x is infinite.
  static constexpr float exp_low = -87.3365402F, exp_high = 89.0F;
  static constexpr float ln2_high = 0.693359375F, ln2_low = -2.12194440e-4F, inverse_ln2 = 1.44269504F;
  static constexpr float round_magic = 12582912.0F;  // 1.5 * 2^23: adding it rounds to an integer
  static constexpr int exponent_shift = 23, taylor_degree = 7;
};

template <>
struct Simd<double> {
  using Vector = double __attribute__((vector_size(COPUS_VECTOR_BYTES)));
  using Unaligned = double __attribute__((vector_size(COPUS_VECTOR_BYTES), aligned(8), may_alias));
  using Integer = int64_t __attribute__((vector_size(COPUS_VECTOR_BYTES)));
  static constexpr int width = COPUS_VECTOR_BYTES / 8;
  static constexpr double exp_low = -708.396418532264, exp_high = 710.0;
  static constexpr double ln2_high = 6.93145751953125e-1, ln2_low = 1.42860682030941723212e-6;
  static constexpr double inverse_ln2 = 1.4426950408889634074;
  static constexpr double round_magic = 6755399441055744.0;  // 1.5 * 2^52
  static constexpr int exponent_shift = 52, taylor_degree = 13;
};

template <class C>
using Vector = typename Simd<C>::Vector;

template <class C>
COPUS_INLINE Vector<C> splat(C value) {
  return Vector<C>{} + value;
}

// Load and store `count` <= width elements. Lanes beyond count are loaded as zero (or `fill`) and not stored. With a
// constant count == width this is one instruction.
template <class C>
COPUS_INLINE Vector<C> load(const C* from, int64_t count, C fill = 0) {
  if (count == Simd<C>::width) return *reinterpret_cast<const typename Simd<C>::Unaligned*>(from);
  Vector<C> vector = splat<C>(fill);
  for (int64_t i = 0; i < count; ++i) vector[i] = from[i];
  return vector;
}

template <class C>
COPUS_INLINE void store(C* to, Vector<C> vector, int64_t count) {
  if (count == Simd<C>::width) {
    *reinterpret_cast<typename Simd<C>::Unaligned*>(to) = vector;
  } else {
    for (int64_t i = 0; i < count; ++i) to[i] = vector[i];
  }
}

using Half = uint16_t __attribute__((vector_size(COPUS_VECTOR_BYTES / 2)));
using UnalignedHalf = uint16_t __attribute__((vector_size(COPUS_VECTOR_BYTES / 2), aligned(2), may_alias));
using Word = uint32_t __attribute__((vector_size(COPUS_VECTOR_BYTES)));

COPUS_INLINE Vector<float> load(const BFloat16* from, int64_t count, float fill = 0) {
  if (count == Simd<float>::width) {
    const Half bits = *reinterpret_cast<const UnalignedHalf*>(from);
    return reinterpret_cast<Vector<float>>(__builtin_convertvector(bits, Word) << 16);
  }
  Vector<float> vector = splat<float>(fill);
  for (int64_t i = 0; i < count; ++i) {
    const uint32_t bits = static_cast<uint32_t>(from[i].bits) << 16;
    vector[i] = __builtin_bit_cast(float, bits);
  }
  return vector;
}

// Rounds to nearest, ties to even; a NaN remains NaN.
COPUS_INLINE void store(BFloat16* to, Vector<float> vector, int64_t count) {
  const Word bits = reinterpret_cast<Word>(vector);
  Word rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
  rounded = vector == vector ? rounded : Word{} + 0x7fc0;
  const Half half = __builtin_convertvector(rounded, Half);
  if (count == Simd<float>::width) {
    *reinterpret_cast<UnalignedHalf*>(to) = half;
  } else {
    for (int64_t i = 0; i < count; ++i) to[i].bits = half[i];
  }
}

// Calls f(offset, count) over n elements: whole vectors, then the remaining elements.
template <class C, class F>
COPUS_INLINE void for_vectors(int64_t n, F f) {
  constexpr int64_t width = Simd<C>::width;
  int64_t i = 0;
  for (; i + width <= n; i += width) f(i, width);
  if (i < n) f(i, n - i);
}

template <class C>
COPUS_INLINE C horizontal_sum(Vector<C> vector) {
  C sum = 0;
  for (int i = 0; i < Simd<C>::width; ++i) sum += vector[i];
  return sum;
}

template <class C>
COPUS_INLINE C horizontal_max(Vector<C> vector) {
  C best = vector[0];
  for (int i = 1; i < Simd<C>::width; ++i) best = vector[i] > best ? vector[i] : best;
  return best;
}

// Computes e^x to 2 units in the last place: range reduction to |r| <= ln(2)/2, then a Taylor polynomial with a
// remainder below half a unit. Results below the normal range are 0. A NaN remains NaN.
template <class C>
COPUS_INLINE Vector<C> exponential(Vector<C> x) {
  using S = Simd<C>;
  const Vector<C> clamped = x > S::exp_high ? splat<C>(S::exp_high) : x;
  const Vector<C> shifted = clamped * S::inverse_ln2 + S::round_magic;
  const Vector<C> n = shifted - S::round_magic;
  const Vector<C> r = (clamped - n * S::ln2_high) - n * S::ln2_low;
  constexpr auto coefficient = [](int degree) {
    C factorial = 1;
    for (int i = 2; i <= degree; ++i) factorial *= static_cast<C>(i);
    return C{1} / factorial;
  };
  Vector<C> polynomial = splat<C>(coefficient(S::taylor_degree));
#pragma GCC unroll 16
  for (int degree = S::taylor_degree - 1; degree >= 0; --degree) polynomial = polynomial * r + coefficient(degree);
  // The low bits of `shifted` are the integer n. 2^n is applied in two factors, because n may be 128 (double: 1024).
  using Integer = typename S::Integer;
  const Integer exponent = reinterpret_cast<Integer>(shifted) - reinterpret_cast<Integer>(splat<C>(S::round_magic));
  const Integer half = exponent >> 1;
  const Integer one = reinterpret_cast<Integer>(splat<C>(1));
  const Vector<C> first = reinterpret_cast<Vector<C>>((half << S::exponent_shift) + one);
  const Vector<C> second = reinterpret_cast<Vector<C>>(((exponent - half) << S::exponent_shift) + one);
  const Vector<C> result = polynomial * first * second;
  return x < S::exp_low ? splat<C>(0) : result;
}

// Computes tanh(x): for |x| < 5/8 by the Cephes library's rational function in x^2 (Moshier 1989), else by e^(2|x|).
template <class C>
COPUS_INLINE Vector<C> hyperbolic_tangent(Vector<C> x) {
  const Vector<C> magnitude = x < 0 ? -x : x, square = x * x;
  const Vector<C> numerator =
      (square * static_cast<C>(-0.964399179425052238628) + static_cast<C>(-99.2877231001918586564)) * square +
      static_cast<C>(-1614.68768441708447952);
  const Vector<C> denominator =
      ((square + static_cast<C>(112.811678491632931402)) * square + static_cast<C>(2235.48839060100448583)) * square +
      static_cast<C>(4844.06305325125486048);
  const Vector<C> large = 1 - 2 / (exponential<C>(2 * magnitude) + 1);
  return magnitude < static_cast<C>(0.625) ? x + x * square * (numerator / denominator) : x < 0 ? -large : large;
}

// The soft-cap cap tanh(x / cap); 0: no cap.
template <class C>
struct SoftCap {
  C cap, inverse;
  explicit COPUS_INLINE SoftCap(C limit) : cap(limit), inverse(limit > 0 ? 1 / limit : 0) {}

  COPUS_INLINE bool is_there() const { return cap > 0; }
  COPUS_INLINE Vector<C> of(Vector<C> x) const { return hyperbolic_tangent<C>(x * inverse) * cap; }
  // Returns the derivative at the x with this capped value.
  COPUS_INLINE Vector<C> slope_at(Vector<C> capped) const {
    const Vector<C> share = capped * inverse;
    return 1 - share * share;
  }
};

}  // namespace copus::cpu::COPUS_ISA
