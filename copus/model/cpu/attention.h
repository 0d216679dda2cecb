// Causal flash attention (Dao et al. 2022) on the CPU. Scores exist only as blocks of block x block elements in the
// first-level cache. Keys, values and queries are packed once per head into dense, vector-aligned panels, because rows
// of the fused query-key-value matrix are a power of two apart and would evict each other from the cache. Rows are
// processed in groups of `group`. A group on the diagonal stops at its last visible key, so the masked half is not
// computed. A block of keys is skipped if window or documents hide it from all queries of the block.
#pragma once

#include <cmath>
#include <limits>

#include "copus/model/cpu/simd.h"
#include "copus/placement/attention_block.h"

namespace copus::cpu::COPUS_ISA {

constexpr int64_t block = attention_block_on_cpu;        // queries and keys of one block of scores
constexpr int group = COPUS_VECTOR_BYTES == 64 ? 8 : 4;  // rows per register tile; divides `block`

COPUS_INLINE int64_t minimum(int64_t a, int64_t b) { return a < b ? a : b; }
COPUS_INLINE int64_t maximum(int64_t a, int64_t b) { return a > b ? a : b; }

// The keys that a query sees: from first() to its own position.
struct Sight {
  int64_t window;
  const int64_t* document_starts;  // [sequence] or null

  // Returns the first key that a query sees, which never decreases from query to query.
  COPUS_INLINE int64_t first(int64_t query) const {
    const int64_t of_document = document_starts ? document_starts[query] : 0;
    return maximum(of_document, query - window + 1);
  }
  // Returns first() relative to the beginning of a block, but at most `seen`, the number of keys up to the query.
  COPUS_INLINE int64_t first_in_block(int64_t query, int64_t block_begin, int64_t seen) const {
    return minimum(seen, maximum(0, first(query) - block_begin));
  }
  // Returns the end of the range of queries that see any key of the block [begin, end).
  COPUS_INLINE int64_t queries_end(int64_t end, int64_t sequence) const {
    const int64_t within_window = minimum(sequence, end - 1 + window);
    if (!document_starts) return within_window;
    int64_t queries = end;
    while (queries < within_window && first(queries) < end) ++queries;
    return queries;
  }
};

template <class S>
COPUS_INLINE Sight sight_in(const AttentionInput<S>& a, int64_t sequence_index) {
  return {a.window, a.document_starts ? a.document_starts + sequence_index * a.sequence : nullptr};
}

template <class C>
COPUS_INLINE int64_t padded(int64_t n) {
  return (n + Simd<C>::width - 1) / Simd<C>::width * Simd<C>::width;
}

// Computes c[0..rows) x [0..vectors) (+)= sum over k in [begin, end) of a(row, k) * b[k], with a(row, k) = a[row *
// a_row + k * a_k].
template <int rows, int vectors, class C>
COPUS_INLINE void multiply_tile(const C* a, int64_t a_row, int64_t a_k, const C* b, int64_t b_row, int64_t begin,
                                int64_t end, C* c, int64_t c_row, bool accumulate) {
  constexpr int width = Simd<C>::width;
  Vector<C> sum[rows][vectors];
  for (int r = 0; r < rows; ++r) {
    for (int v = 0; v < vectors; ++v) sum[r][v] = accumulate ? load(c + r * c_row + v * width, width) : splat<C>(0);
  }
  for (int64_t k = begin; k < end; ++k) {
    Vector<C> column[vectors];
    for (int v = 0; v < vectors; ++v) column[v] = load(b + k * b_row + v * width, width);
    for (int r = 0; r < rows; ++r) {
      const C factor = a[r * a_row + k * a_k];
      for (int v = 0; v < vectors; ++v) sum[r][v] += column[v] * factor;
    }
  }
  for (int r = 0; r < rows; ++r) {
    for (int v = 0; v < vectors; ++v) store(c + r * c_row + v * width, sum[r][v], width);
  }
}

// The same for `columns` columns (a multiple of the vector width) and `rows` <= group rows.
template <class C>
COPUS_INLINE void multiply_rows(int64_t rows, int64_t columns, const C* a, int64_t a_row, int64_t a_k, const C* b,
                                int64_t b_row, int64_t begin, int64_t end, C* c, int64_t c_row, bool accumulate) {
  constexpr int64_t width = Simd<C>::width;
  int64_t j = 0;
  if (rows == group) {
    for (; j + 2 * width <= columns; j += 2 * width) {
      multiply_tile<group, 2>(a, a_row, a_k, b + j, b_row, begin, end, c + j, c_row, accumulate);
    }
    for (; j < columns; j += width) {
      multiply_tile<group, 1>(a, a_row, a_k, b + j, b_row, begin, end, c + j, c_row, accumulate);
    }
    return;
  }
  for (; j < columns; j += width) {
    for (int64_t r = 0; r < rows; ++r) {
      multiply_tile<1, 1>(a + r * a_row, a_row, a_k, b + j, b_row, begin, end, c + r * c_row + j, c_row, accumulate);
    }
  }
}

// Packs to[token, 0..padded head_dim) = factor * from[token], zero beyond head_dim.
template <class S, class C>
COPUS_INLINE void pack(const S* from, int64_t stride, int64_t tokens, int64_t head_dim, C factor, C* to) {
  const int64_t to_row = padded<C>(head_dim);
  for (int64_t t = 0; t < tokens; ++t) {
    for (int64_t i = 0; i < to_row; i += Simd<C>::width) {
      const int64_t n = minimum(Simd<C>::width, head_dim - i);
      store(to + t * to_row + i, load(from + t * stride + i, n) * factor, Simd<C>::width);
    }
  }
}

// Transposes packed, dense tokens: to[i, token] = from[token, i]. Fills up to `to_row` tokens with zeros.
template <class C>
COPUS_INLINE void transpose(const C* from, int64_t from_row, int64_t tokens, int64_t head_dim, C* to, int64_t to_row) {
  for (int64_t t0 = 0; t0 < to_row; t0 += Simd<C>::width) {
    for (int64_t i = 0; i < head_dim; ++i) {
      for (int64_t t = t0; t < t0 + Simd<C>::width; ++t)
        to[i * to_row + t] = t < tokens ? from[t * from_row + i] : C{0};
    }
  }
}

// Divides a range of scratch memory into arrays, each starting on a cache line.
template <class C>
struct Scratch {
  C* base;
  int64_t used = 0;
  C* take(int64_t elements) {
    C* taken = base ? base + used : nullptr;
    used += (elements + 15) / 16 * 16;
    return taken;
  }
};

template <class C>
struct ForwardScratch {
  C *query, *key, *key_transposed, *value, *scores, *output, *largest, *sum;
  int64_t used;

  ForwardScratch(int64_t sequence, int64_t head_dim, C* memory) {
    Scratch<C> scratch{memory};
    const int64_t row = padded<C>(head_dim);
    query = scratch.take(block * row);
    key = scratch.take(sequence * row);
    key_transposed = scratch.take(head_dim * padded<C>(sequence));
    value = scratch.take(sequence * row);
    scores = scratch.take(block * block);
    output = scratch.take(block * row);
    largest = scratch.take(block);
    sum = scratch.take(block);
    used = scratch.used;
  }
};

template <class S>
int64_t attention_forward_scratch(const AttentionForward<S>& a) {
  return ForwardScratch<Compute<S>>(a.sequence, a.head_dim, nullptr).used;
}

template <class S>
void attention_forward(const AttentionForward<S>& a, int64_t task, Compute<S>* memory) {
  using C = Compute<S>;
  const ForwardScratch<C> s(a.sequence, a.head_dim, memory);
  const int64_t row = padded<C>(a.head_dim), key_row = padded<C>(a.sequence);
  const int64_t sequence_index = task / a.kv_heads, kv_head = task % a.kv_heads, shared = a.heads / a.kv_heads;
  const int64_t first_token = sequence_index * a.sequence;
  const Sight sight = sight_in(a, sequence_index);
  const SoftCap<C> cap(a.softcap);
  pack(a.key + first_token * a.row_stride + kv_head * a.head_dim, a.row_stride, a.sequence, a.head_dim, C{1}, s.key);
  transpose(s.key, row, a.sequence, a.head_dim, s.key_transposed, key_row);
  pack(a.value + first_token * a.row_stride + kv_head * a.head_dim, a.row_stride, a.sequence, a.head_dim, C{1},
       s.value);

  for (int64_t head = kv_head * shared; head < (kv_head + 1) * shared; ++head) {
    for (int64_t q0 = 0; q0 < a.sequence; q0 += block) {
      const int64_t queries = minimum(block, a.sequence - q0);
      pack(a.query + (first_token + q0) * a.row_stride + head * a.head_dim, a.row_stride, queries, a.head_dim, a.scale,
           s.query);
      for (int64_t r = 0; r < queries; ++r) {
        s.largest[r] = -std::numeric_limits<C>::infinity();
        s.sum[r] = 0;
      }
      for (int64_t i = 0; i < queries * row; ++i) s.output[i] = 0;
      for (int64_t k0 = sight.first(q0) / block * block; k0 <= q0; k0 += block) {
        const bool diagonal = k0 == q0;
        const int64_t keys = minimum(block, a.sequence - k0);
        for (int64_t r0 = 0; r0 < queries; r0 += group) {
          const int64_t rows = minimum(group, queries - r0);
          const int64_t visible = diagonal ? minimum(keys, r0 + group) : keys;  // visible to any row of the group
          multiply_rows(rows, padded<C>(visible), s.query + r0 * row, row, 1, s.key_transposed + k0, key_row, 0,
                        a.head_dim, s.scores + r0 * block, block, false);
          for (int64_t r = r0; r < r0 + rows; ++r) {
            C* scores = s.scores + r * block;
            const int64_t end = diagonal ? r + 1 : keys;
            const int64_t first = sight.first_in_block(q0 + r, k0, end);
            for (int64_t i = 0; i < first; ++i) scores[i] = 0;
            for (int64_t i = end; i < visible; ++i) scores[i] = 0;
            if (first == end) continue;  // this query sees no key of the block
            C* const begin = scores + first;
            const int64_t seen = end - first;
            if (cap.is_there()) {
              for_vectors<C>(seen, [&](int64_t i, int64_t n)
                                       COPUS_INLINE_LAMBDA { store(begin + i, cap.of(load(begin + i, n)), n); });
            }
            constexpr C lowest = -std::numeric_limits<C>::infinity();
            Vector<C> best = splat<C>(lowest);
            for_vectors<C>(seen, [&](int64_t i, int64_t n) COPUS_INLINE_LAMBDA {
              const Vector<C> x = load(begin + i, n, lowest);
              best = x > best ? x : best;
            });
            const C block_largest = horizontal_max<C>(best);
            const C largest = block_largest > s.largest[r] ? block_largest : s.largest[r];
            const C shrink = std::exp(s.largest[r] - largest);
            Vector<C> sums = splat<C>(0);
            for_vectors<C>(seen, [&](int64_t i, int64_t n) COPUS_INLINE_LAMBDA {
              const Vector<C> p = exponential<C>(load(begin + i, n, lowest) - largest);
              store(begin + i, p, n);
              sums += p;
            });
            s.largest[r] = largest;
            s.sum[r] = s.sum[r] * shrink + horizontal_sum<C>(sums);
            C* output = s.output + r * row;
            for (int64_t i = 0; i < row; i += Simd<C>::width) {
              store(output + i, load(output + i, Simd<C>::width) * shrink, Simd<C>::width);
            }
          }
          multiply_rows(rows, row, s.scores + r0 * block, block, 1, s.value + k0 * row, row, 0, visible,
                        s.output + r0 * row, row, true);
        }
      }
      for (int64_t r = 0; r < queries; ++r) {
        const C* from = s.output + r * row;
        S* to = a.output + (first_token + q0 + r) * a.output_stride + head * a.head_dim;
        const C factor = C{1} / s.sum[r];
        for_vectors<C>(a.head_dim,
                       [&](int64_t i, int64_t n) COPUS_INLINE_LAMBDA { store(to + i, load(from + i, n) * factor, n); });
        a.log_sum_exp[(sequence_index * a.heads + head) * a.sequence + q0 + r] = s.largest[r] + std::log(s.sum[r]);
      }
    }
  }
}

template <class C>
struct BackwardScratch {
  C *query, *key, *key_transposed, *value, *value_transposed, *output_gradient, *output_dot_gradient;
  C *scores, *score_gradients, *query_gradient, *key_gradient, *value_gradient;
  int64_t used;

  BackwardScratch(int64_t sequence, int64_t head_dim, C* memory) {
    Scratch<C> scratch{memory};
    const int64_t panel = sequence * padded<C>(head_dim), transposed = head_dim * padded<C>(sequence);
    query = scratch.take(panel);
    key = scratch.take(panel);
    key_transposed = scratch.take(transposed);
    value = scratch.take(panel);
    value_transposed = scratch.take(transposed);
    output_gradient = scratch.take(panel);
    output_dot_gradient = scratch.take(sequence);
    scores = scratch.take(block * block);
    score_gradients = scratch.take(block * block);
    query_gradient = scratch.take(panel);
    key_gradient = scratch.take(panel);
    value_gradient = scratch.take(panel);
    used = scratch.used;
  }
};

template <class S>
int64_t attention_backward_scratch(const AttentionBackward<S>& a) {
  return BackwardScratch<Compute<S>>(a.sequence, a.head_dim, nullptr).used;
}

template <class S, class C>
COPUS_INLINE void unpack(const C* from, int64_t tokens, int64_t head_dim, C factor, S* to, int64_t stride) {
  for (int64_t t = 0; t < tokens; ++t) {
    for_vectors<C>(head_dim, [&](int64_t i, int64_t n) COPUS_INLINE_LAMBDA {
      store(to + t * stride + i, load(from + t * padded<C>(head_dim) + i, n) * factor, n);
    });
  }
}

template <class S>
void attention_backward(const AttentionBackward<S>& a, int64_t task, Compute<S>* memory) {
  using C = Compute<S>;
  const BackwardScratch<C> s(a.sequence, a.head_dim, memory);
  const int64_t row = padded<C>(a.head_dim), key_row = padded<C>(a.sequence);
  const int64_t sequence_index = task / a.kv_heads, kv_head = task % a.kv_heads, shared = a.heads / a.kv_heads;
  const int64_t first_token = sequence_index * a.sequence;
  const int64_t kv_offset = first_token * a.row_stride + kv_head * a.head_dim;
  const Sight sight = sight_in(a, sequence_index);
  const SoftCap<C> cap(a.softcap);
  pack(a.key + kv_offset, a.row_stride, a.sequence, a.head_dim, C{1}, s.key);
  pack(a.value + kv_offset, a.row_stride, a.sequence, a.head_dim, C{1}, s.value);
  transpose(s.key, row, a.sequence, a.head_dim, s.key_transposed, key_row);
  transpose(s.value, row, a.sequence, a.head_dim, s.value_transposed, key_row);
  for (int64_t i = 0; i < a.sequence * row; ++i) s.key_gradient[i] = s.value_gradient[i] = 0;

  for (int64_t head = kv_head * shared; head < (kv_head + 1) * shared; ++head) {
    const int64_t query_offset = first_token * a.row_stride + head * a.head_dim;
    const int64_t output_offset = first_token * a.output_stride + head * a.head_dim;
    const C* log_sum_exp = a.log_sum_exp + (sequence_index * a.heads + head) * a.sequence;
    pack(a.query + query_offset, a.row_stride, a.sequence, a.head_dim, a.scale, s.query);
    pack(a.output_gradient + output_offset, a.output_stride, a.sequence, a.head_dim, C{1}, s.output_gradient);
    for (int64_t t = 0; t < a.sequence; ++t) {
      const S* output = a.output + output_offset + t * a.output_stride;
      Vector<C> products = splat<C>(0);
      for_vectors<C>(a.head_dim, [&](int64_t i, int64_t n) COPUS_INLINE_LAMBDA {
        products += load(output + i, n) * load(s.output_gradient + t * row + i, n);
      });
      s.output_dot_gradient[t] = horizontal_sum<C>(products);
    }
    for (int64_t i = 0; i < a.sequence * row; ++i) s.query_gradient[i] = 0;

    for (int64_t k0 = 0; k0 < a.sequence; k0 += block) {
      const int64_t keys = minimum(block, a.sequence - k0);
      const int64_t queries_end = sight.queries_end(k0 + keys, a.sequence);
      for (int64_t q0 = k0; q0 < queries_end; q0 += block) {
        const bool diagonal = q0 == k0;
        const int64_t queries = minimum(block, a.sequence - q0);
        for (int64_t r0 = 0; r0 < queries; r0 += group) {
          const int64_t rows = minimum(group, queries - r0);
          const int64_t visible = diagonal ? minimum(keys, r0 + group) : keys;
          C* scores = s.scores + r0 * block;
          C* score_gradients = s.score_gradients + r0 * block;
          multiply_rows(rows, padded<C>(visible), s.query + (q0 + r0) * row, row, 1, s.key_transposed + k0, key_row, 0,
                        a.head_dim, scores, block, false);
          multiply_rows(rows, padded<C>(visible), s.output_gradient + (q0 + r0) * row, row, 1, s.value_transposed + k0,
                        key_row, 0, a.head_dim, score_gradients, block, false);
          for (int64_t r = 0; r < rows; ++r) {
            const int64_t query = q0 + r0 + r;
            const int64_t end = diagonal ? r0 + r + 1 : keys;
            const int64_t first = sight.first_in_block(query, k0, end);
            C* row_scores = scores + r * block;
            C* row_gradients = score_gradients + r * block;
            for (int64_t i = 0; i < first; ++i) row_scores[i] = row_gradients[i] = 0;
            for (int64_t i = end; i < visible; ++i) row_scores[i] = row_gradients[i] = 0;
            C* p = row_scores + first;
            C* dp = row_gradients + first;
            for_vectors<C>(end - first, [&](int64_t i, int64_t n) COPUS_INLINE_LAMBDA {
              Vector<C> score = load(p + i, n);
              if (cap.is_there()) score = cap.of(score);
              const Vector<C> probability = exponential<C>(score - log_sum_exp[query]);
              Vector<C> gradient = probability * (load(dp + i, n) - s.output_dot_gradient[query]);
              if (cap.is_there()) gradient *= cap.slope_at(score);
              store(p + i, probability, n);
              store(dp + i, gradient, n);
            });
          }
          multiply_rows(rows, row, score_gradients, block, 1, s.key + k0 * row, row, 0, visible,
                        s.query_gradient + (q0 + r0) * row, row, true);
        }
        for (int64_t c0 = 0; c0 < keys; c0 += group) {
          const int64_t columns = minimum(group, keys - c0);
          const int64_t first_query = diagonal ? c0 : 0;  // first query that sees a key of the group
          multiply_rows(columns, row, s.scores + c0, 1, block, s.output_gradient + q0 * row, row, first_query, queries,
                        s.value_gradient + (k0 + c0) * row, row, true);
          multiply_rows(columns, row, s.score_gradients + c0, 1, block, s.query + q0 * row, row, first_query, queries,
                        s.key_gradient + (k0 + c0) * row, row, true);
        }
      }
    }
    unpack(s.query_gradient, a.sequence, a.head_dim, a.scale, a.query_gradient + query_offset, a.row_stride);
  }
  unpack(s.key_gradient, a.sequence, a.head_dim, C{1}, a.key_gradient + kv_offset, a.row_stride);
  unpack(s.value_gradient, a.sequence, a.head_dim, C{1}, a.value_gradient + kv_offset, a.row_stride);
}

}  // namespace copus::cpu::COPUS_ISA
