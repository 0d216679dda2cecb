// The CPU kernels behind model/kernels/kernels.h, on raw pointers, without torch headers. The same sources are compiled
// once per instruction set, and kernels<S>() selects the widest instruction set that this processor supports. Kernels
// process ranges of rows or tasks, which the caller distributes over its thread pool. No result depends on how the
// ranges are divided.
//
// S is the storage type of weights and activations: float, double or BFloat16. Arithmetic is in Compute<S>.
#pragma once

#include <cstdint>

#include "copus/model/adamw_state.h"

namespace copus::cpu {

// Repeats the value of description/model_description.h. These sources must not include that header: its inline
// functions would be compiled here for one instruction set, and the linker could use them in code that must run without
// this instruction set.
inline constexpr int64_t ignored_target = -100;

struct BFloat16 {
  uint16_t bits;
};

template <class S>
struct ComputeOf {
  using type = float;
};
template <>
struct ComputeOf<double> {
  using type = double;
};
template <class S>
using Compute = typename ComputeOf<S>::type;

// Computes sum = residual + delta, and normalises it. If delta is null, sum is not written and residual is the input.
// RMSNorm (Zhang & Sennrich 2019): normed = sum * rstd * weight, rstd = 1 / sqrt(mean(sum^2) + epsilon). LayerNorm,
// which has a bias (Ba et al. 2016): normed = (sum - mean) * rstd * weight + bias, rstd = 1 / sqrt(mean((sum - mean)^2)
// + epsilon).
template <class S>
struct NormForward {
  int64_t width;
  Compute<S> epsilon;
  const S* residual;       // [rows, width]
  const S* delta;          // [rows, width] or null
  const S* weight;         // [width]
  const S* bias;           // [width]; null: RMSNorm
  S* sum;                  // [rows, width]; only with delta
  S* normed;               // [rows, width]
  Compute<S>* statistics;  // RMSNorm: rstd [rows]; LayerNorm: mean and rstd [rows, 2]
};

// Computes input_gradient = residual_gradient + d(normed)/d(input)^T output_gradient, and the weight's gradient over
// the range of rows.
template <class S>
struct NormBackward {
  bool is_layer;  // true: LayerNorm
  int64_t width;
  const S* output_gradient;      // [rows, width]
  const S* input;                // [rows, width]
  const S* weight;               // [width]
  const Compute<S>* statistics;  // as in forward
  const S* residual_gradient;    // [rows, width] or null
  S* input_gradient;             // [rows, width]
  Compute<S>* weight_gradient;   // [width], over this range
};

// Normalises each query head and each key head of a row separately, and copies the value heads.
template <class S>
struct HeadNormForward {
  int64_t heads, kv_heads, head_dim;
  Compute<S> epsilon;
  const S* qkv;                        // [rows, (heads + 2 kv_heads) * head_dim]
  const S *query_weight, *key_weight;  // [head_dim]
  S* normed;                           // [rows, (heads + 2 kv_heads) * head_dim]
};

// Overwrites the gradient of `normed` with the gradient of `qkv`; the values' gradient stays as it is. Computes the
// weights' gradients over the range of rows.
template <class S>
struct HeadNormBackward {
  int64_t heads, kv_heads, head_dim;
  Compute<S> epsilon;
  const S* qkv;
  const S *query_weight, *key_weight;
  S* gradient;                                             // [rows, (heads + 2 kv_heads) * head_dim]
  Compute<S>*query_weight_gradient, *key_weight_gradient;  // [head_dim], over this range
};

// RMSNorm over all queries of a row together, and over all its keys; values are copied. Ranks hold different heads of
// the same rows and must add up their sums of squares. So forward and backward each have one kernel for the sums and
// one for the results. Element 0 of arrays of two is for queries, element 1 for keys.
template <class S>
struct ProjectionNorm {
  int64_t widths[2];         // of the local heads
  Compute<S> all_widths[2];  // of the projections of all ranks
  Compute<S> epsilon;
  const S* qkv;               // [rows, widths[0] + 2 widths[1]]
  const S* weights[2];        // [widths[i]]
  const Compute<S>* squares;  // [rows, 2], over all ranks
  S* normed = nullptr;        // [rows, widths[0] + 2 widths[1]]
  // Backward: overwrites the gradient of `normed` with the gradient of `qkv`. Computes the weights' gradients over the
  // range of rows.
  S* gradient = nullptr;
  const Compute<S>* products = nullptr;  // [rows, 2], over all ranks
  Compute<S>* weight_gradients[2] = {};  // [widths[i]], over this range

  int64_t row() const { return widths[0] + 2 * widths[1]; }
};

// Computes sums over the local heads, [rows, 2]: of qkv^2 or, with `gradient`, of gradient x weight x qkv.
template <class S>
struct ProjectionSums {
  int64_t widths[2];
  const S* qkv;
  const S* gradient;    // null: sums of squares
  const S* weights[2];  // only with a gradient
  Compute<S>* sums;

  int64_t row() const { return widths[0] + 2 * widths[1]; }
};

// Rotates pairs (j, j + rotary_dim / 2) of the first `heads` heads of every row by the row's angle; backward by the
// negative angle.
template <class S>
struct Rotary {
  int64_t angles, heads, head_dim, rotary_dim, row_stride;
  S* data;                   // [rows, row_stride]; row r has angle r % angles
  const Compute<S>* cosine;  // [angles, rotary_dim / 2]
  const Compute<S>* sine;
  bool backward;
};

enum class ActivationFunction { silu, gelu_tanh, gelu };

// Computes activation = function(gate) * up, where a row is gate, then up. Without a gate: function(input).
template <class S>
struct ActivationForward {
  ActivationFunction function;
  bool is_gated;
  int64_t width;
  const S* input;  // [rows, 2 * width]; without a gate [rows, width]
  S* activation;   // [rows, width]
};

// Overwrites the input with its gradient, and the activation's gradient with the activation, which the next layer's
// weight gradient needs. So the forward pass need not keep the activation.
template <class S>
struct ActivationBackward {
  ActivationFunction function;
  bool is_gated;
  int64_t width;
  S* input;
  S* activation_gradient;
};

// Causal grouped-query attention over packed sequences of equal length. A query sees the keys of its document up to its
// own position, at most the last `window` keys. A task is one (sequence, kv head). Scores exist only for one block of
// queries and keys (flash attention, Dao et al. 2022).
template <class S>
struct AttentionInput {
  int64_t batch, sequence, heads, kv_heads, head_dim, window;
  Compute<S> scale, softcap;          // scores are scaled, then soft-capped; 0: no soft-cap
  int64_t row_stride, output_stride;  // elements between tokens
  const S *query, *key, *value;       // first element of each matrix
  const int64_t* document_starts;     // [batch, sequence], ascending within a sequence; null: one document each
};

template <class S>
struct AttentionForward : AttentionInput<S> {
  S* output;
  Compute<S>* log_sum_exp;  // [batch, heads, sequence]
};

template <class S>
struct AttentionBackward : AttentionInput<S> {
  const S *output, *output_gradient;
  const Compute<S>* log_sum_exp;
  S *query_gradient, *key_gradient, *value_gradient;  // row_stride between tokens
};

// Looks up tokens in a part of the embedding table, whose first row is token `first_token`. Other tokens get zeros.
template <class S>
struct EmbeddingPart {
  int64_t first_token, vocab, width;
  const S* table;         // [vocab, width]
  const int64_t* tokens;  // [rows]
  S* out;                 // [rows, width]
};

// Computes the softmax statistics of each row over its local columns, the first of which is token `first_token`.
template <class S>
struct SoftmaxStatistics {
  int64_t first_token, vocab;
  Compute<S> softcap;      // of the logits, applied first; 0: none
  const S* logits;         // [rows, vocab]
  const int64_t* targets;  // [rows], ignored_target for none
  double* statistics;      // [rows, 3]: largest logit, sum of exp(logit - largest), target's logit (0 if not local)
};

// Computes the softmax cross-entropy of each row. With `gradient`, overwrites logits with loss_scale *
// d(loss)/d(logits).
template <class S>
struct CrossEntropy {
  int64_t first_token, vocab;  // range of the local columns
  Compute<S> softcap;          // of the logits, applied first; 0: none
  bool gradient;
  double loss_scale;
  S* logits;               // [rows, vocab]
  const int64_t* targets;  // [rows], ignored_target for none
  double* losses;          // [rows]
  // The statistics of all parts of the columns; null if the columns are not split.
  const double* statistics;  // [parts, rows, 3]
  int64_t parts, rows;
};

// Updates fp32 (or float64) state by AdamW (Loshchilov & Hutter 2019).
template <class C>
struct AdamW {
  AdamWState<C*> state;
  const C* gradient;
  double lr, beta1, beta2, epsilon, weight_decay;
  double gradient_scale;  // clipping
  double bias_correction1, bias_correction2;
};

// Updates fp32 (or float64) state by Signum (Bernstein et al. 2018).
template <class C>
struct Signum {
  C *master, *momentum;
  const C* gradient;
  double lr, beta, weight_decay;
  double gradient_scale;  // clipping
};

// Updates fp32 (or float64) state by Muon (Jordan et al. 2024), and zeroes the direction.
template <class C>
struct Muon {
  C *master, *average, *direction;
  const C* gradient;
  double lr, momentum, weight_decay;
  double gradient_scale;  // clipping
};

template <class C>
struct WeightedSum {
  const C *first, *second;
  C first_weight, second_weight;
  C* sum;
};

template <class S>
struct Kernels {
  void (*norm_forward)(const NormForward<S>&, int64_t begin, int64_t end);
  void (*norm_backward)(const NormBackward<S>&, int64_t begin, int64_t end);
  void (*head_norm_forward)(const HeadNormForward<S>&, int64_t begin, int64_t end);
  void (*head_norm_backward)(const HeadNormBackward<S>&, int64_t begin, int64_t end);
  void (*projection_sums)(const ProjectionSums<S>&, int64_t begin, int64_t end);
  void (*projection_norm_forward)(const ProjectionNorm<S>&, int64_t begin, int64_t end);
  void (*projection_norm_backward)(const ProjectionNorm<S>&, int64_t begin, int64_t end);
  void (*rotary)(const Rotary<S>&, int64_t begin, int64_t end);
  void (*activation_forward)(const ActivationForward<S>&, int64_t begin, int64_t end);
  void (*activation_backward)(const ActivationBackward<S>&, int64_t begin, int64_t end);
  int64_t (*attention_forward_scratch)(const AttentionForward<S>&);  // elements of Compute<S> per thread
  void (*attention_forward)(const AttentionForward<S>&, int64_t task, Compute<S>* scratch);
  int64_t (*attention_backward_scratch)(const AttentionBackward<S>&);
  void (*attention_backward)(const AttentionBackward<S>&, int64_t task, Compute<S>* scratch);
  void (*embedding_part)(const EmbeddingPart<S>&, int64_t begin, int64_t end);
  void (*softmax_statistics)(const SoftmaxStatistics<S>&, int64_t begin, int64_t end);
  void (*cross_entropy)(const CrossEntropy<S>&, int64_t begin, int64_t end);
  // Adds out[j] += sum over rows of data[row, j], for the columns j in begin .. end, rows in ascending order.
  void (*add_column_sums)(const S* data, int64_t rows, int64_t width, Compute<S>* out, int64_t begin, int64_t end);
  // Adds gradient[tokens[r] - first_token, j] += data[r, j] for the columns j in begin .. end, rows in ascending order.
  // Skips tokens outside of the gradient's `vocab` rows.
  void (*add_embedding_gradient)(const S* data, const int64_t* tokens, int64_t rows, int64_t width, int64_t first_token,
                                 int64_t vocab, Compute<S>* gradient, int64_t begin, int64_t end);
  // Optimizers work on the master dtype, so they are the same for float and BFloat16 storage.
  void (*adamw)(const AdamW<Compute<S>>&, int64_t begin, int64_t end);
  void (*signum)(const Signum<Compute<S>>&, int64_t begin, int64_t end);
  void (*muon)(const Muon<Compute<S>>&, int64_t begin, int64_t end);
  void (*weighted_sum)(const WeightedSum<Compute<S>>&, int64_t begin, int64_t end);
  double (*squared_norm)(const Compute<S>* data, int64_t begin, int64_t end);  // squares in Compute<S>, sum in float64
};

template <class S>
const Kernels<S>& kernels();

}  // namespace copus::cpu
