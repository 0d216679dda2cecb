// The GPU kernels behind model/kernels/kernels.h, as plain functions on raw pointers to device memory. Each enqueues
// its work on `stream` (a cudaStream_t or hipStream_t) and returns. kernels.cu defines them for CUDA, for HIP, and for
// tests in host memory (emulated_device.h).
//
// No result depends on how blocks and threads are scheduled: work is split at fixed places, and only integers are added
// atomically. `storage` is the type of activations and weights in memory; arithmetic is in float32. Matrices are dense
// and row-major. Pointers need only the alignment of their elements, but kernels access 16 bytes at a time if rows
// begin at multiples of 16 bytes.
#pragma once

#include <cstdint>

#include "copus/model/adamw_state.h"

namespace copus::gpu {

// Repeats the value of description/model_description.h, which device code does not include.
inline constexpr int64_t ignored_target = -100;

enum class Storage { float32, bfloat16 };

// The longest rows of norms, which keep a row in registers.
inline constexpr int64_t widest_norm = 8192;

// Computes sum = residual + delta, and normalises it. If delta is null, sum is not written and residual is the input.
// RMSNorm (Zhang & Sennrich 2019): normed = sum * rstd * weight, rstd = 1 / sqrt(mean(sum^2) + epsilon). LayerNorm,
// which has a bias (Ba et al. 2016): normed = (sum - mean) * rstd * weight + bias, rstd = 1 / sqrt(mean((sum - mean)^2)
// + epsilon).
struct NormForward {
  Storage storage;
  int64_t rows, width;
  float epsilon;
  const void* residual;  // [rows, width]
  const void* delta;     // [rows, width] or null
  const void* weight;    // [width]
  const void* bias;      // [width]; null: RMSNorm
  void* sum;             // [rows, width]; only with delta
  void* normed;          // [rows, width]
  float* statistics;     // RMSNorm: rstd [rows]; LayerNorm: mean and rstd [rows, 2]
};
void norm_forward(const NormForward& arguments, void* stream);

// Rows per partial sum of a norm weight's gradient.
inline constexpr int64_t norm_rows_per_partial_sum = 16;

// Computes input_gradient = residual_gradient + d(normed)/d(input)^T output_gradient.
struct NormBackward {
  Storage storage;
  bool is_layer;  // true: LayerNorm
  int64_t rows, width;
  const void* output_gradient;    // [rows, width]
  const void* input;              // [rows, width]
  const void* weight;             // [width]
  const float* statistics;        // as in forward
  const void* residual_gradient;  // [rows, width] or null
  void* input_gradient;           // [rows, width]
  float* weight_gradients;        // [ceil(rows / norm_rows_per_partial_sum), width]
};
void norm_backward(const NormBackward& arguments, void* stream);

// Computes out[range, column] (+)= the column's sum over the range's rows.
struct ColumnSums {
  Storage storage;
  int64_t rows, width, rows_per_range;
  const void* data;  // [rows, width]
  float* out;        // [ceil(rows / rows_per_range), width]
  bool add;
};
void column_sums(const ColumnSums& arguments, void* stream);

// The largest head_dim of norms of heads, which keep a head's sums in shared memory.
inline constexpr int64_t widest_normed_head = 256;

// Normalises each query head and each key head of a row separately, by RMSNorm, and copies the value heads.
struct HeadNormForward {
  Storage storage;
  int64_t rows, heads, kv_heads, head_dim;
  float epsilon;
  const void* qkv;           // [rows, (heads + 2 kv_heads) * head_dim]
  const void* query_weight;  // [head_dim]
  const void* key_weight;    // [head_dim]
  void* normed;              // [rows, (heads + 2 kv_heads) * head_dim]
};
void head_norm_forward(const HeadNormForward& arguments, void* stream);

// Partial sums per block: at most one per warp.
inline constexpr int64_t head_norm_warps = 8;

// Overwrites the gradient of `normed` with the gradient of `qkv`; that of the values is the same.
struct HeadNormBackward {
  Storage storage;
  int64_t rows, heads, kv_heads, head_dim;
  float epsilon;
  const void* qkv;
  const void* query_weight;
  const void* key_weight;
  void* gradient;  // [rows, (heads + 2 kv_heads) * head_dim]
  // [ceil(rows / norm_rows_per_partial_sum) * head_norm_warps, head_dim] each.
  float* query_weight_gradients;
  float* key_weight_gradients;
};
void head_norm_backward(const HeadNormBackward& arguments, void* stream);

inline constexpr int64_t widest_rotary_head = 512;

// Rotates pairs (j, j + head_dim / 2) of the first `heads` heads of every row by the angle of the row's position;
// backward by the negative angle. head_dim is even and at most widest_rotary_head.
struct Rotary {
  Storage storage;
  int64_t rows, angles, heads, head_dim, row_stride;
  void* data;           // [rows, row_stride]; row r has angle r % angles
  const float* cosine;  // [angles, head_dim / 2]
  const float* sine;
  bool backward;
};
void rotary(const Rotary& arguments, void* stream);

enum class ActivationFunction { silu, gelu_tanh, gelu };

// Computes activation = function(gate) * up, where a row is gate, then up. Without a gate: function(input).
struct ActivationForward {
  Storage storage;
  ActivationFunction function;
  bool is_gated;
  int64_t rows, width;
  const void* input;  // [rows, 2 * width]; without a gate [rows, width]
  void* activation;   // [rows, width]
};
void activation_forward(const ActivationForward& arguments, void* stream);

// Overwrites the input with its gradient, and activation_gradient with the activation.
struct ActivationBackward {
  Storage storage;
  ActivationFunction function;
  bool is_gated;
  int64_t rows, width;
  void* input;
  void* activation_gradient;
};
void activation_backward(const ActivationBackward& arguments, void* stream);

// Looks up tokens in a part of the embedding table, whose first row is token `first_token`. Other tokens get zeros.
struct EmbeddingPart {
  Storage storage;
  int64_t first_token, vocab, rows, width;
  const void* table;      // [vocab, width]
  const int64_t* tokens;  // [rows]
  void* out;              // [rows, width]
};
void embedding_part(const EmbeddingPart& arguments, void* stream);

// Rows that are summed together in the order of their tokens, and rows that one block sorts.
inline constexpr int64_t embedding_tile = 32;
inline constexpr int64_t embedding_sort_tile = 1024;

// Adds gradient[tokens[r] - first_token] += output_gradient[r], in a fixed order for equal tokens. Skips tokens outside
// of the part. Sorts rows by token first, so that every row of the gradient is read and written once.
struct EmbeddingGradient {
  Storage storage;
  int64_t first_token, vocab, rows, width;
  const void* output_gradient;  // [rows, width]
  const int64_t* tokens;        // [rows]
  float* gradient;              // [vocab, width]
  // Scratch memory.
  int64_t* tile_keys;    // [rows]
  int64_t* sorted_keys;  // [rows]
  float* partial_sums;   // [2, ceil(rows / embedding_tile), width]
};
void add_embedding_gradient(const EmbeddingGradient& arguments, void* stream);

// Computes the softmax statistics of each row over its local columns, the first of which is token `first_token`.
struct SoftmaxStatistics {
  Storage storage;
  int64_t first_token, vocab, rows;
  float softcap;           // of the logits, applied first; 0: none
  const void* logits;      // [rows, vocab]
  const int64_t* targets;  // [rows], ignored_target for none
  double* statistics;      // [rows, 3]: largest logit, sum of exp(logit - largest), target's logit (0 if not local)
};
void softmax_statistics(const SoftmaxStatistics& arguments, void* stream);

// Computes the softmax cross-entropy of each row. With `gradient`, overwrites logits with loss_scale *
// d(loss)/d(logits).
struct CrossEntropy {
  Storage storage;
  int64_t first_token, vocab, rows;  // range of the local columns
  float softcap;                     // of the logits, applied first; 0: none
  bool gradient;
  float loss_scale;
  void* logits;            // [rows, vocab]
  const int64_t* targets;  // [rows], ignored_target for none
  // The statistics of all parts of the columns; null if the columns are not split.
  const double* statistics;  // [parts, rows, 3]
  int64_t parts;
  double* losses;    // [rows], scratch memory
  double* loss_sum;  // one element, to which the losses are added
};
void cross_entropy(const CrossEntropy& arguments, void* stream);

// Updates flat float32 state by AdamW (Loshchilov & Hutter 2019). Holds the step's coefficients in float32.
struct AdamW {
  int64_t count;
  AdamWState<float*> state;
  const float* gradient;
  float beta1, beta2, new1, new2;  // new = 1 - beta
  float keep;                      // 1 - learning rate * weight decay
  float step;                      // learning rate / (1 - beta1^t)
  float root_correction;           // 1 / sqrt(1 - beta2^t)
  float epsilon, gradient_scale;
};
void adamw(const AdamW& arguments, void* stream);

// Updates flat float32 state by Signum (Bernstein et al. 2018). Holds the step's coefficients in float32.
struct Signum {
  int64_t count;
  float *master, *momentum;
  const float* gradient;
  float beta, new_share;  // new_share = 1 - beta
  float keep;             // 1 - learning rate * weight decay
  float step;             // the learning rate
  float gradient_scale;
};
void signum(const Signum& arguments, void* stream);

// Rounds `from` to nearest, ties to even, into `to`.
void round_to_bfloat16(const float* from, void* to, int64_t count, void* stream);

// Number of neighbouring squares that are summed in float64 before the exact sum. Blocks begin at multiples of it.
inline constexpr int64_t squared_norm_block = 64;

// Adds the squares of values[begin .. end) to `words`, the words of an ExactSum (base/numbers/exact_sum.h).
struct SquaredNorm {
  const float* values;
  int64_t begin, end;
  int64_t* words;  // [72]
};
void add_squared_norm(const SquaredNorm& arguments, void* stream);

}  // namespace copus::gpu
