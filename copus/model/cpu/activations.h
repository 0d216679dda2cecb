// Activation functions of the feed-forward, forward and backward.
#pragma once

#include "copus/model/cpu/simd.h"

namespace copus::cpu::COPUS_ISA {

// The value of an activation function and its derivative.
template <class C>
struct Activated {
  Vector<C> value, slope;
};

// Activation functions of the form x sigmoid(z(x)): SiLU with z = x, and GELU's tanh approximation with z = 2 sqrt(2 /
// pi) (x + 0.044715 x^3), since (1 + tanh(z / 2)) / 2 = sigmoid(z). A Curve has functions for z(x) and for a product
// with the derivative z'(x).
template <class C, class Curve>
struct Sigmoidal {
  static COPUS_INLINE Vector<C> value(Vector<C> x) { return x / (exponential<C>(-Curve::exponent(x)) + 1); }
  static COPUS_INLINE Activated<C> with_slope(Vector<C> x) {
    const Vector<C> sigmoid = splat<C>(1) / (exponential<C>(-Curve::exponent(x)) + 1);
    const Vector<C> value = x * sigmoid;
    return {value, sigmoid + Curve::times_slope(value * (1 - sigmoid), x)};
  }
};

template <class C>
struct SiluCurve {
  static COPUS_INLINE Vector<C> exponent(Vector<C> x) { return x; }
  static COPUS_INLINE Vector<C> times_slope(Vector<C> product, Vector<C> /*x*/) { return product; }
};

template <class C>
struct GeluTanhCurve {
  static constexpr C scale = static_cast<C>(1.5957691216057307), cube = static_cast<C>(0.044715);  // 2 sqrt(2 / pi)
  static COPUS_INLINE Vector<C> exponent(Vector<C> x) { return x * (x * x * cube + 1) * scale; }
  static COPUS_INLINE Vector<C> times_slope(Vector<C> product, Vector<C> x) {
    return product * (x * x * (3 * cube) + 1) * scale;
  }
};

// Computes ((first[0] x + first[1]) x + ...) / ((x + second[0]) x + ...).
template <class C, int n>
COPUS_INLINE Vector<C> ratio(Vector<C> x, const double (&first)[n], const double (&second)[n - 1]) {
  Vector<C> numerator = splat<C>(static_cast<C>(first[0])), denominator = splat<C>(1);
#pragma GCC unroll 8
  for (int i = 1; i < n; ++i) {
    numerator = numerator * x + static_cast<C>(first[i]);
    denominator = denominator * x + static_cast<C>(second[i - 1]);
  }
  return numerator / denominator;
}

// Exact GELU: x Phi(x), where Phi is the normal distribution function, from Cody's (1969) rational approximations of
// erf and erfc.
template <class C>
struct Gelu {
  static constexpr double small_first[] = {1.85777706184603153e-1, 3.16112374387056560, 1.13864154151050156e2,
                                           3.77485237685302021e2, 3.20937758913846947e3},
                          small_second[] = {2.36012909523441209e1, 2.44024637934444173e2, 1.28261652607737228e3,
                                            2.84423683343917062e3};
  static constexpr double middle_first[] = {2.15311535474403846e-8, 5.64188496988670089e-1, 8.88314979438837594,
                                            6.61191906371416295e1,  2.98635138197400131e2,  8.81952221241769090e2,
                                            1.71204761263407058e3,  2.05107837782607147e3,  1.23033935479799725e3},
                          middle_second[] = {1.57449261107098347e1, 1.17693950891312499e2, 5.37181101862009858e2,
                                             1.62138957456669019e3, 3.29079923573345963e3, 4.36261909014324716e3,
                                             3.43936767414372164e3, 1.23033935480374942e3};
  static constexpr double large_first[] = {1.63153871373020978e-2, 3.05326634961232344e-1, 3.60344899949804439e-1,
                                           1.25781726111229246e-1, 1.60837851487422766e-2, 6.58749161529837803e-4},
                          large_second[] = {2.56852019228982242, 1.87295284992346725, 5.27905102951428412e-1,
                                            6.05183413124413191e-2, 2.33520497626869185e-3};
  static constexpr C inverse_root_2 = static_cast<C>(0.70710678118654752440);
  static constexpr C inverse_root_pi = static_cast<C>(0.56418958354775628695);

  // Returns Phi(x), given e^(-x^2 / 2).
  static COPUS_INLINE Vector<C> share(Vector<C> x, Vector<C> bell) {
    const Vector<C> y = (x < 0 ? -x : x) * inverse_root_2, square = y * y;
    const Vector<C> small = y * ratio<C>(square, small_first, small_second);             // erf
    const Vector<C> within = y > 4 ? splat<C>(4) : y, beyond = y > 4 ? y : splat<C>(4);  // no overflow in unused lanes
    const Vector<C> inverse_square = 1 / (beyond * beyond);
    const Vector<C> tail =
        (inverse_root_pi - inverse_square * ratio<C>(inverse_square, large_first, large_second)) / beyond;
    const Vector<C> erfc = (y > 4 ? tail : ratio<C>(within, middle_first, middle_second)) * bell;
    const Vector<C> below = y < static_cast<C>(0.46875) ? (1 - small) / 2 : erfc / 2;  // Phi(-|x|)
    return x < 0 ? below : 1 - below;
  }
  static COPUS_INLINE Vector<C> bell(Vector<C> x) { return exponential<C>(x * x / -2); }

  static COPUS_INLINE Vector<C> value(Vector<C> x) { return x * share(x, bell(x)); }
  static COPUS_INLINE Activated<C> with_slope(Vector<C> x) {
    const Vector<C> density = bell(x), phi = share(x, density);
    return {x * phi, phi + x * density * (inverse_root_2 * inverse_root_pi)};
  }
};

template <class Function, bool is_gated, class S>
void activate_rows(const ActivationForward<S>& a, int64_t begin, int64_t end) {
  using C = Compute<S>;
  for (int64_t row = begin; row < end; ++row) {
    const S* input = a.input + row * (is_gated ? 2 : 1) * a.width;
    S* activation = a.activation + row * a.width;
    for_vectors<C>(a.width, [&](int64_t i, int64_t n) COPUS_INLINE_LAMBDA {
      const Vector<C> x = load(input + i, n);
      const Vector<C> value = Function::value(x);
      if constexpr (is_gated) {
        store(activation + i, value * load(input + a.width + i, n), n);
      } else {
        store(activation + i, value, n);
      }
    });
  }
}

template <class Function, bool is_gated, class S>
void activate_rows_backward(const ActivationBackward<S>& a, int64_t begin, int64_t end) {
  using C = Compute<S>;
  for (int64_t row = begin; row < end; ++row) {
    S* input = a.input + row * (is_gated ? 2 : 1) * a.width;
    S* gradient = a.activation_gradient + row * a.width;
    for_vectors<C>(a.width, [&](int64_t i, int64_t n) COPUS_INLINE_LAMBDA {
      const Vector<C> x = load(input + i, n);
      const Vector<C> d = load(gradient + i, n);
      const auto [value, slope] = Function::with_slope(x);
      if constexpr (is_gated) {
        S* up = input + a.width;
        const Vector<C> u = load(up + i, n);
        store(input + i, d * u * slope, n);
        store(up + i, d * value, n);
        store(gradient + i, value * u, n);
      } else {
        store(input + i, d * slope, n);
        store(gradient + i, value, n);
      }
    });
  }
}

// Calls f<Function, is_gated>().
template <class C, class F>
void with_activation(ActivationFunction function, bool is_gated, F f) {
  const auto with_gate = [&]<class Function>() {
    is_gated ? f.template operator()<Function, true>() : f.template operator()<Function, false>();
  };
  switch (function) {
    case ActivationFunction::silu:
      return with_gate.template operator()<Sigmoidal<C, SiluCurve<C>>>();
    case ActivationFunction::gelu_tanh:
      return with_gate.template operator()<Sigmoidal<C, GeluTanhCurve<C>>>();
    case ActivationFunction::gelu:
      return with_gate.template operator()<Gelu<C>>();
  }
}

template <class S>
void activation_forward(const ActivationForward<S>& a, int64_t begin, int64_t end) {
  with_activation<Compute<S>>(a.function, a.is_gated,
                              [&]<class F, bool is_gated>() { activate_rows<F, is_gated>(a, begin, end); });
}

template <class S>
void activation_backward(const ActivationBackward<S>& a, int64_t begin, int64_t end) {
  with_activation<Compute<S>>(a.function, a.is_gated,
                              [&]<class F, bool is_gated>() { activate_rows_backward<F, is_gated>(a, begin, end); });
}

}  // namespace copus::cpu::COPUS_ISA
