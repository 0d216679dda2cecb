// Memory-bound kernels: norms, rotary embedding, cross-entropy, optimizers and sums.
#pragma once

#include <cmath>
#include <limits>

#include "copus/model/cpu/simd.h"

namespace copus::cpu::COPUS_ISA {

template <bool is_layer, class S>
void norm_rows(const NormForward<S>& a, int64_t begin, int64_t end) {
  using C = Compute<S>;
  for (int64_t row = begin; row < end; ++row) {
    const S* input = a.residual + row * a.width;
    Vector<C> sums = splat<C>(0);  // of squares, or of elements if their mean is to be subtracted
    if (a.delta) {
      const S* delta = a.delta + row * a.width;
      S* sum = a.sum + row * a.width;
      for_vectors<C>(a.width, [&](int64_t i, int64_t n) COPUS_INLINE_LAMBDA {
        store(sum + i, load(input + i, n) + load(delta + i, n), n);
        const Vector<C> x = load(sum + i, n);
        sums += is_layer ? x : x * x;
      });
      input = sum;
    } else {
      for_vectors<C>(a.width, [&](int64_t i, int64_t n) COPUS_INLINE_LAMBDA {
        const Vector<C> x = load(input + i, n);
        sums += is_layer ? x : x * x;
      });
    }
    C mean = 0;
    if constexpr (is_layer) {
      mean = horizontal_sum<C>(sums) / static_cast<C>(a.width);
      sums = splat<C>(0);
      for_vectors<C>(a.width, [&](int64_t i, int64_t n) COPUS_INLINE_LAMBDA {
        const Vector<C> x = load(input + i, n, mean) - mean;
        sums += x * x;
      });
      a.statistics[2 * row] = mean;
    }
    const C rstd = C{1} / std::sqrt(horizontal_sum<C>(sums) / static_cast<C>(a.width) + a.epsilon);
    a.statistics[is_layer ? 2 * row + 1 : row] = rstd;
    S* normed = a.normed + row * a.width;
    for_vectors<C>(a.width, [&](int64_t i, int64_t n) COPUS_INLINE_LAMBDA {
      if constexpr (is_layer) {
        store(normed + i, (load(input + i, n) - mean) * rstd * load(a.weight + i, n) + load(a.bias + i, n), n);
      } else {
        store(normed + i, load(input + i, n) * rstd * load(a.weight + i, n), n);
      }
    });
  }
}

template <class S>
void norm_forward(const NormForward<S>& a, int64_t begin, int64_t end) {
  a.bias ? norm_rows<true>(a, begin, end) : norm_rows<false>(a, begin, end);
}

template <bool is_layer, class S>
void norm_rows_backward(const NormBackward<S>& a, int64_t begin, int64_t end) {
  using C = Compute<S>;
  for (int64_t i = 0; i < a.width; ++i) a.weight_gradient[i] = 0;
  for (int64_t row = begin; row < end; ++row) {
    const S* gradient = a.output_gradient + row * a.width;
    const S* input = a.input + row * a.width;
    const C mean = is_layer ? a.statistics[2 * row] : C{0};
    const C rstd = a.statistics[is_layer ? 2 * row + 1 : row];
    const auto centred = [&](int64_t i, int64_t n) COPUS_INLINE_LAMBDA {
      const Vector<C> x = load(input + i, n);
      if constexpr (is_layer) return x - mean;
      return x;
    };
    Vector<C> products = splat<C>(0), total = splat<C>(0);
    for_vectors<C>(a.width, [&](int64_t i, int64_t n) COPUS_INLINE_LAMBDA {
      const Vector<C> g = load(gradient + i, n);
      const Vector<C> x = centred(i, n);
      store(a.weight_gradient + i, load(a.weight_gradient + i, n) + g * x * rstd, n);
      products += g * load(a.weight + i, n) * x;
      if constexpr (is_layer) total += g * load(a.weight + i, n);
    });
    const C projection = horizontal_sum<C>(products) / static_cast<C>(a.width) * rstd * rstd;
    const C average = is_layer ? horizontal_sum<C>(total) / static_cast<C>(a.width) : C{0};
    S* out = a.input_gradient + row * a.width;
    for_vectors<C>(a.width, [&](int64_t i, int64_t n) COPUS_INLINE_LAMBDA {
      Vector<C> dx = load(gradient + i, n) * load(a.weight + i, n) - centred(i, n) * projection;
      if constexpr (is_layer) dx -= average;
      dx *= rstd;
      if (a.residual_gradient) dx += load(a.residual_gradient + row * a.width + i, n);
      store(out + i, dx, n);
    });
  }
}

template <class S>
void norm_backward(const NormBackward<S>& a, int64_t begin, int64_t end) {
  a.is_layer ? norm_rows_backward<true>(a, begin, end) : norm_rows_backward<false>(a, begin, end);
}

template <class C, class S>
COPUS_INLINE C reciprocal_rms(const S* x, int64_t width, C epsilon) {
  Vector<C> squares = splat<C>(0);
  for_vectors<C>(width, [&](int64_t i, int64_t n) COPUS_INLINE_LAMBDA {
    const Vector<C> v = load(x + i, n);
    squares += v * v;
  });
  return C{1} / std::sqrt(horizontal_sum<C>(squares) / static_cast<C>(width) + epsilon);
}

template <class S>
void head_norm_forward(const HeadNormForward<S>& a, int64_t begin, int64_t end) {
  using C = Compute<S>;
  const int64_t row_stride = (a.heads + 2 * a.kv_heads) * a.head_dim;
  for (int64_t row = begin; row < end; ++row) {
    for (int64_t head = 0; head < a.heads + a.kv_heads; ++head) {
      const S* x = a.qkv + row * row_stride + head * a.head_dim;
      S* normed = a.normed + row * row_stride + head * a.head_dim;
      const S* weight = head < a.heads ? a.query_weight : a.key_weight;
      const C rstd = reciprocal_rms<C>(x, a.head_dim, a.epsilon);
      for_vectors<C>(a.head_dim, [&](int64_t i, int64_t n) COPUS_INLINE_LAMBDA {
        store(normed + i, load(x + i, n) * rstd * load(weight + i, n), n);
      });
    }
    const int64_t values = row * row_stride + (a.heads + a.kv_heads) * a.head_dim;
    for_vectors<C>(a.kv_heads * a.head_dim, [&](int64_t i, int64_t n) COPUS_INLINE_LAMBDA {
      store(a.normed + values + i, load(a.qkv + values + i, n), n);
    });
  }
}

template <class S>
void head_norm_backward(const HeadNormBackward<S>& a, int64_t begin, int64_t end) {
  using C = Compute<S>;
  const int64_t row_stride = (a.heads + 2 * a.kv_heads) * a.head_dim;
  for (int64_t i = 0; i < a.head_dim; ++i) a.query_weight_gradient[i] = a.key_weight_gradient[i] = 0;
  for (int64_t row = begin; row < end; ++row) {
    for (int64_t head = 0; head < a.heads + a.kv_heads; ++head) {
      const S* x = a.qkv + row * row_stride + head * a.head_dim;
      S* gradient = a.gradient + row * row_stride + head * a.head_dim;
      const S* weight = head < a.heads ? a.query_weight : a.key_weight;
      C* weight_gradient = head < a.heads ? a.query_weight_gradient : a.key_weight_gradient;
      const C rstd = reciprocal_rms<C>(x, a.head_dim, a.epsilon);
      Vector<C> products = splat<C>(0);
      for_vectors<C>(a.head_dim, [&](int64_t i, int64_t n) COPUS_INLINE_LAMBDA {
        const Vector<C> product = load(gradient + i, n) * load(x + i, n);
        store(weight_gradient + i, load(weight_gradient + i, n) + product * rstd, n);
        products += product * load(weight + i, n);
      });
      const C projection = horizontal_sum<C>(products) / static_cast<C>(a.head_dim) * rstd * rstd;
      for_vectors<C>(a.head_dim, [&](int64_t i, int64_t n) COPUS_INLINE_LAMBDA {
        store(gradient + i, (load(gradient + i, n) * load(weight + i, n) - load(x + i, n) * projection) * rstd, n);
      });
    }
  }
}

template <class S>
void projection_sums(const ProjectionSums<S>& a, int64_t begin, int64_t end) {
  using C = Compute<S>;
  for (int64_t row = begin; row < end; ++row) {
    for (int64_t part = 0, first = row * a.row(); part < 2; first += a.widths[part++]) {
      const S* x = a.qkv + first;
      Vector<C> sum = splat<C>(0);
      for_vectors<C>(a.widths[part], [&](int64_t i, int64_t n) COPUS_INLINE_LAMBDA {
        const Vector<C> v = load(x + i, n);
        sum += a.gradient ? load(a.gradient + first + i, n) * load(a.weights[part] + i, n) * v : v * v;
      });
      a.sums[2 * row + part] = horizontal_sum<C>(sum);
    }
  }
}

template <class S>
void projection_norm_forward(const ProjectionNorm<S>& a, int64_t begin, int64_t end) {
  using C = Compute<S>;
  for (int64_t row = begin; row < end; ++row) {
    int64_t first = row * a.row();
    for (int64_t part = 0; part < 2; first += a.widths[part++]) {
      const C rstd = C{1} / std::sqrt(a.squares[2 * row + part] / a.all_widths[part] + a.epsilon);
      for_vectors<C>(a.widths[part], [&](int64_t i, int64_t n) COPUS_INLINE_LAMBDA {
        store(a.normed + first + i, load(a.qkv + first + i, n) * rstd * load(a.weights[part] + i, n), n);
      });
    }
    for_vectors<C>(a.widths[1], [&](int64_t i, int64_t n) COPUS_INLINE_LAMBDA {
      store(a.normed + first + i, load(a.qkv + first + i, n), n);
    });
  }
}

template <class S>
void projection_norm_backward(const ProjectionNorm<S>& a, int64_t begin, int64_t end) {
  using C = Compute<S>;
  for (int64_t part = 0; part < 2; ++part) {
    for (int64_t i = 0; i < a.widths[part]; ++i) a.weight_gradients[part][i] = 0;
  }
  for (int64_t row = begin; row < end; ++row) {
    for (int64_t part = 0, first = row * a.row(); part < 2; first += a.widths[part++]) {
      const C rstd = C{1} / std::sqrt(a.squares[2 * row + part] / a.all_widths[part] + a.epsilon);
      const C projection = a.products[2 * row + part] / a.all_widths[part] * rstd * rstd;
      C* weight_gradient = a.weight_gradients[part];
      for_vectors<C>(a.widths[part], [&](int64_t i, int64_t n) COPUS_INLINE_LAMBDA {
        const Vector<C> g = load(a.gradient + first + i, n);
        const Vector<C> x = load(a.qkv + first + i, n);
        store(weight_gradient + i, load(weight_gradient + i, n) + g * x * rstd, n);
        store(a.gradient + first + i, (g * load(a.weights[part] + i, n) - x * projection) * rstd, n);
      });
    }
  }
}

template <class S>
void rotary(const Rotary<S>& a, int64_t begin, int64_t end) {
  using C = Compute<S>;
  const int64_t half = a.rotary_dim / 2;
  for (int64_t row = begin; row < end; ++row) {
    const C* cosine = a.cosine + row % a.angles * half;
    const C* sine = a.sine + row % a.angles * half;
    for (int64_t head = 0; head < a.heads; ++head) {
      S* first = a.data + row * a.row_stride + head * a.head_dim;
      S* second = first + half;
      for_vectors<C>(half, [&](int64_t i, int64_t n) COPUS_INLINE_LAMBDA {
        const Vector<C> x = load(first + i, n);
        const Vector<C> y = load(second + i, n);
        const Vector<C> c = load(cosine + i, n);
        const Vector<C> s = a.backward ? -load(sine + i, n) : load(sine + i, n);
        store(first + i, x * c - y * s, n);
        store(second + i, y * c + x * s, n);
      });
    }
  }
}

template <class S>
void embedding_part(const EmbeddingPart<S>& a, int64_t begin, int64_t end) {
  using C = Compute<S>;
  for (int64_t row = begin; row < end; ++row) {
    const int64_t index = a.tokens[row] - a.first_token;
    const bool here = index >= 0 && index < a.vocab;
    S* out = a.out + row * a.width;
    for_vectors<C>(a.width, [&](int64_t i, int64_t n) COPUS_INLINE_LAMBDA {
      store(out + i, here ? load(a.table + index * a.width + i, n) : splat<C>(0), n);
    });
  }
}

template <class C>
struct RowSoftmax {
  C largest, sum, target_logit;
};

// Computes the softmax statistics of a row. `target` may be outside of the columns.
template <class S>
COPUS_INLINE RowSoftmax<Compute<S>> row_softmax(const S* logits, int64_t columns, int64_t target,
                                                SoftCap<Compute<S>> cap) {
  using C = Compute<S>;
  constexpr C lowest = -std::numeric_limits<C>::infinity();
  Vector<C> best = splat<C>(lowest);
  for_vectors<C>(columns, [&](int64_t i, int64_t n) COPUS_INLINE_LAMBDA {
    const Vector<C> x = load(logits + i, n, lowest);
    best = x > best ? x : best;
  });
  const C largest = cap.is_there() ? cap.of(splat<C>(horizontal_max<C>(best)))[0] : horizontal_max<C>(best);
  Vector<C> sums = splat<C>(0);
  for_vectors<C>(columns, [&](int64_t i, int64_t n) COPUS_INLINE_LAMBDA {
    Vector<C> x = load(logits + i, n, lowest);
    if (cap.is_there()) {
      x = cap.of(x);
      for (int64_t lane = n; lane < Simd<C>::width; ++lane) x[lane] = lowest;  // beyond the last column
    }
    sums += exponential<C>(x - largest);
  });
  if (target < 0 || target >= columns) return {largest, horizontal_sum<C>(sums), C{0}};
  const Vector<C> of_target = load(logits + target, 1);
  return {largest, horizontal_sum<C>(sums), cap.is_there() ? cap.of(of_target)[0] : of_target[0]};
}

// Computes the softmax of a whole row from the statistics of its parts, in the order of the parts.
template <class S>
RowSoftmax<Compute<S>> combine_parts(const CrossEntropy<S>& a, int64_t row) {
  using C = Compute<S>;
  const auto part = [&](int64_t i) { return a.statistics + (i * a.rows + row) * 3; };
  double largest = part(0)[0], sum = 0, target_logit = 0;
  for (int64_t i = 1; i < a.parts; ++i) largest = part(i)[0] > largest ? part(i)[0] : largest;
  for (int64_t i = 0; i < a.parts; ++i) {
    sum += part(i)[1] * std::exp(part(i)[0] - largest);
    target_logit += part(i)[2];
  }
  return {static_cast<C>(largest), static_cast<C>(sum), static_cast<C>(target_logit)};
}

template <class S>
void softmax_statistics(const SoftmaxStatistics<S>& a, int64_t begin, int64_t end) {
  for (int64_t row = begin; row < end; ++row) {
    double* statistics = a.statistics + row * 3;
    if (a.targets[row] == ignored_target) {
      for (int i = 0; i < 3; ++i) statistics[i] = 0;
      continue;
    }
    const auto softmax =
        row_softmax(a.logits + row * a.vocab, a.vocab, a.targets[row] - a.first_token, SoftCap<Compute<S>>(a.softcap));
    statistics[0] = static_cast<double>(softmax.largest);
    statistics[1] = static_cast<double>(softmax.sum);
    statistics[2] = static_cast<double>(softmax.target_logit);
  }
}

template <class S>
void cross_entropy(const CrossEntropy<S>& a, int64_t begin, int64_t end) {
  using C = Compute<S>;
  const SoftCap<C> cap(a.softcap);
  for (int64_t row = begin; row < end; ++row) {
    S* logits = a.logits + row * a.vocab;
    if (a.targets[row] == ignored_target) {
      a.losses[row] = 0;
      if (a.gradient) {
        for_vectors<C>(a.vocab, [&](int64_t i, int64_t n) COPUS_INLINE_LAMBDA { store(logits + i, splat<C>(0), n); });
      }
      continue;
    }
    const int64_t target = a.targets[row] - a.first_token;
    const auto [largest, sum, target_logit] =
        a.statistics ? combine_parts(a, row) : row_softmax(logits, a.vocab, target, cap);
    a.losses[row] = std::log(static_cast<double>(sum)) + static_cast<double>(largest - target_logit);
    if (a.gradient) {
      const C maximum = largest, scale = static_cast<C>(a.loss_scale) / sum;
      for_vectors<C>(a.vocab, [&](int64_t i, int64_t n) COPUS_INLINE_LAMBDA {
        const Vector<C> x = load(logits + i, n);
        if (cap.is_there()) {
          const Vector<C> capped = cap.of(x);
          store(logits + i, exponential<C>(capped - maximum) * scale * cap.slope_at(capped), n);
        } else {
          store(logits + i, exponential<C>(x - maximum) * scale, n);
        }
      });
      if (target < 0 || target >= a.vocab) continue;
      const C probability = std::exp(target_logit - largest) / sum;
      const C slope = cap.is_there() ? cap.slope_at(splat<C>(target_logit))[0] : 1;
      store(logits + target, splat<C>((probability - 1) * static_cast<C>(a.loss_scale) * slope), 1);
    }
  }
}

template <class S>
void add_column_sums(const S* data, int64_t rows, int64_t width, Compute<S>* out, int64_t begin, int64_t end) {
  using C = Compute<S>;
  for (int64_t row = 0; row < rows; ++row) {
    const S* from = data + row * width;
    for_vectors<C>(end - begin, [&](int64_t i, int64_t n) COPUS_INLINE_LAMBDA {
      store(out + begin + i, load(out + begin + i, n) + load(from + begin + i, n), n);
    });
  }
}

template <class S>
void add_embedding_gradient(const S* data, const int64_t* tokens, int64_t rows, int64_t width, int64_t first_token,
                            int64_t vocab, Compute<S>* gradient, int64_t begin, int64_t end) {
  using C = Compute<S>;
  for (int64_t row = 0; row < rows; ++row) {
    const int64_t index = tokens[row] - first_token;
    if (index < 0 || index >= vocab) continue;
    const S* from = data + row * width;
    C* to = gradient + index * width;
    for_vectors<C>(end - begin, [&](int64_t i, int64_t n) COPUS_INLINE_LAMBDA {
      store(to + begin + i, load(to + begin + i, n) + load(from + begin + i, n), n);
    });
  }
}

template <class C>
COPUS_INLINE Vector<C> square_root(Vector<C> x) {
  for (int i = 0; i < Simd<C>::width; ++i) x[i] = std::sqrt(x[i]);
  return x;
}

template <class C>
void adamw(const AdamW<C>& a, int64_t begin, int64_t end) {
  const C beta1 = static_cast<C>(a.beta1), beta2 = static_cast<C>(a.beta2);
  const C new1 = static_cast<C>(1 - a.beta1), new2 = static_cast<C>(1 - a.beta2);
  const C keep = static_cast<C>(1 - a.lr * a.weight_decay);
  const C step = static_cast<C>(a.lr / a.bias_correction1);
  const C root_correction = static_cast<C>(1 / std::sqrt(a.bias_correction2));
  const C epsilon = static_cast<C>(a.epsilon), scale = static_cast<C>(a.gradient_scale);
  for_vectors<C>(end - begin, [&](int64_t offset, int64_t n) COPUS_INLINE_LAMBDA {
    const int64_t i = begin + offset;
    const Vector<C> gradient = load(a.gradient + i, n) * scale;
    const Vector<C> mean = load(a.state.exp_avg + i, n) * beta1 + gradient * new1;
    const Vector<C> variance = load(a.state.exp_avg_sq + i, n) * beta2 + gradient * gradient * new2;
    store(a.state.exp_avg + i, mean, n);
    store(a.state.exp_avg_sq + i, variance, n);
    const Vector<C> denominator = square_root<C>(variance) * root_correction + epsilon;
    store(a.state.master + i, load(a.state.master + i, n) * keep - step * mean / denominator, n);
  });
}

template <class C>
COPUS_INLINE Vector<C> sign(Vector<C> x) {
  for (int i = 0; i < Simd<C>::width; ++i) x[i] = static_cast<C>((x[i] > 0) - (x[i] < 0));
  return x;
}

template <class C>
void signum(const Signum<C>& a, int64_t begin, int64_t end) {
  const C beta = static_cast<C>(a.beta), new_share = static_cast<C>(1 - a.beta);
  const C keep = static_cast<C>(1 - a.lr * a.weight_decay), step = static_cast<C>(a.lr);
  const C scale = static_cast<C>(a.gradient_scale);
  for_vectors<C>(end - begin, [&](int64_t offset, int64_t n) COPUS_INLINE_LAMBDA {
    const int64_t i = begin + offset;
    const Vector<C> momentum = load(a.momentum + i, n) * beta + load(a.gradient + i, n) * scale * new_share;
    store(a.momentum + i, momentum, n);
    store(a.master + i, load(a.master + i, n) * keep - step * sign<C>(momentum), n);
  });
}

template <class C>
void muon(const Muon<C>& a, int64_t begin, int64_t end) {
  const C kept = static_cast<C>(a.momentum), new_share = static_cast<C>(1 - a.momentum);
  const C keep = static_cast<C>(1 - a.lr * a.weight_decay), step = static_cast<C>(a.lr);
  const C scale = static_cast<C>(a.gradient_scale);
  for_vectors<C>(end - begin, [&](int64_t offset, int64_t n) COPUS_INLINE_LAMBDA {
    const int64_t i = begin + offset;
    store(a.average + i, load(a.average + i, n) * kept + load(a.gradient + i, n) * scale * new_share, n);
    store(a.master + i, load(a.master + i, n) * keep - step * load(a.direction + i, n), n);
    store(a.direction + i, Vector<C>{}, n);
  });
}

template <class C>
void weighted_sum(const WeightedSum<C>& a, int64_t begin, int64_t end) {
  for_vectors<C>(end - begin, [&](int64_t offset, int64_t n) COPUS_INLINE_LAMBDA {
    const int64_t i = begin + offset;
    store(a.sum + i, load(a.first + i, n) * a.first_weight + load(a.second + i, n) * a.second_weight, n);
  });
}

template <class C>
double squared_norm(const C* data, int64_t begin, int64_t end) {
  constexpr int half = Simd<double>::width;
  // Distance of prefetches in elements. Prefetching doubles the speed: blocks are so short that the processor's own
  // prefetcher does not help.
  constexpr int64_t prefetch_distance = 1024;
  Vector<double> low = splat<double>(0), high = splat<double>(0);
  for_vectors<C>(end - begin, [&](int64_t i, int64_t n) COPUS_INLINE_LAMBDA {
    __builtin_prefetch(data + begin + i + prefetch_distance);
    const Vector<C> x = load(data + begin + i, n);
    const Vector<C> squares = x * x;
    if constexpr (sizeof(C) == 8) {
      low += squares;
    } else {
      Vector<double> first, second;
      for (int j = 0; j < half; ++j) first[j] = squares[j];
      for (int j = 0; j < half; ++j) second[j] = squares[half + j];
      low += first;
      high += second;
    }
  });
  return horizontal_sum<double>(low + high);
}

}  // namespace copus::cpu::COPUS_ISA
