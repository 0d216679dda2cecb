// Every tensor kernel that training calls; the model itself calls no ATen operator. Most kernels are our own fused
// kernels for CPUs (cpu/) and GPUs (gpu/). Tensors that these do not support go to compositions of ATen operators
// (kernels_generic.cpp).
//
// Activations are row-major [rows, width] in the compute dtype (float32, bfloat16, float64 in tests), one row per
// token. Main gradients and optimizer state are in the master dtype (float32; float64 in tests). Results are new
// tensors unless stated otherwise. On CUDA all calls run in order on the current stream, and only calls that touch host
// memory wait.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <span>

#include "copus/base/numbers/exact_sum.h"
#include "copus/description/model_description.h"
#include "copus/description/muon.h"
#include "copus/model/adamw_state.h"

namespace copus::kernels {

// ---- memory -------------------------------------------------------------------------------------------------------

at::Tensor empty(at::IntArrayRef shape, at::ScalarType dtype, at::Device device);
// Makes a tensor over existing host memory. Calls `release` when no tensor refers to this memory any more.
at::Tensor over_host_memory(void* data, at::IntArrayRef shape, at::ScalarType dtype, std::function<void()> release);
at::Tensor zeros(at::IntArrayRef shape, at::ScalarType dtype, at::Device device);
// Copies from the host without waiting for a GPU. The caller may change `data` as soon as the call returns.
at::Tensor from_host(const int64_t* data, at::IntArrayRef shape, at::Device device);
at::Tensor from_host(const double* data, at::IntArrayRef shape, at::ScalarType dtype, at::Device device);
// Copies a tensor's elements, row-major, to host memory, and waits for them.
void copy_to_host(const at::Tensor& from, void* to);
void copy_from_host(const void* from, const at::Tensor& to);

// ---- linear layers ------------------------------------------------------------------------------------------------

// Computes x weight^T + bias, [rows, out], for x [rows, in], weight [out, in], bias [out] or undefined.
at::Tensor linear(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias);
// Computes dy weight, [rows, in], for dy [rows, out].
at::Tensor linear_input_gradient(const at::Tensor& dy, const at::Tensor& weight);
// Like linear_input_gradient, into `out`, which may be rows of a larger matrix.
void linear_input_gradient_into(const at::Tensor& out, const at::Tensor& dy, const at::Tensor& weight);
// Adds gradient [out, in] += dy^T x. A product of bfloat16 factors accumulates directly into a float32 gradient if the
// device supports this; the first call tests whether it does.
void add_linear_weight_gradient(const at::Tensor& gradient, const at::Tensor& dy, const at::Tensor& x);
// Adds gradient [out] += sum of dy's rows.
void add_linear_bias_gradient(const at::Tensor& gradient, const at::Tensor& dy);

// ---- decoder layer ------------------------------------------------------------------------------------------------

struct NormResult {
  at::Tensor sum;         // residual + delta (residual itself if delta is undefined)
  at::Tensor normed;      // the norm of the sum
  at::Tensor statistics;  // master dtype: RMSNorm's 1 / rms, [rows]; LayerNorm's mean and 1 / std, [rows, 2]
};
// Computes a + b, rounded to their dtype as in add_norm's `sum`.
at::Tensor add(const at::Tensor& a, const at::Tensor& b);
// Computes factor * x.
at::Tensor multiply(const at::Tensor& x, double factor);
// Computes 1 + x.
at::Tensor add_one(const at::Tensor& x);
// Normalises rows: LayerNorm with a bias [width], RMSNorm if the bias is undefined.
NormResult add_norm(const at::Tensor& residual, const at::Tensor& delta, const at::Tensor& weight,
                    const at::Tensor& bias, double epsilon);

// Returns residual_gradient (may be undefined) + the norm's input gradient, and adds the weight's gradient to
// weight_gradient [width]. The shape of `statistics` shows whether the norm is RMSNorm or LayerNorm.
// add_linear_bias_gradient gives the gradient of a bias.
at::Tensor norm_backward(const at::Tensor& dy, const at::Tensor& input, const at::Tensor& statistics,
                         const at::Tensor& weight, const at::Tensor& residual_gradient,
                         const at::Tensor& weight_gradient);

// The documents of a micro-batch. Undefined: each sequence is one document.
struct Documents {
  at::Tensor starts;  // int64 [batch, sequence], ascending: where each position's document begins in its sequence
  // int32 [documents + 1]: the first row, of [batch * sequence], of each document, then the number of rows.
  at::Tensor bounds;
  int64_t longest = 0;  // length of the longest document in tokens
  bool defined() const { return starts.defined(); }
};
// Makes Documents from starts in host memory, row by row. Does not wait for the device.
Documents documents_from_host(const int64_t* starts, int64_t batch, int64_t sequence, at::Device device);

// The shape of the fused query-key-value matrix [batch * sequence, (heads + 2 kv_heads) * head_dim]. A row has the
// query heads, then the key heads, then the value heads.
struct AttentionShape {
  int64_t batch, sequence, heads, kv_heads, head_dim;
  // A query attends to its own position and the window - 1 positions before it. 0: to all positions before it.
  int64_t window = 0;
  double multiplier = 0;     // of the scores; 0: 1 / sqrt(head_dim)
  double softcap = 0;        // scaled scores s become softcap tanh(s / softcap); 0: no soft-cap
  Documents documents = {};  // a query attends to no position before its document
  double scale() const { return score_scale(multiplier, head_dim); }
  bool has_window() const { return window > 0 && window < sequence; }
  int64_t row() const { return (heads + 2 * kv_heads) * head_dim; }
};

// Normalises every query head and every key head of a row separately: RMSNorm (Zhang & Sennrich 2019) over head_dim,
// with one weight [head_dim] for all query heads and one for all key heads. Copies values unchanged.
at::Tensor normalize_heads(const at::Tensor& qkv, const AttentionShape& shape, const at::Tensor& query_weight,
                           const at::Tensor& key_weight, double epsilon);
// Overwrites the gradient of normalize_heads' result with the gradient of `qkv`. Adds the weights' gradients to
// query_weight_gradient and key_weight_gradient [head_dim].
void normalize_heads_backward_(const at::Tensor& gradient, const at::Tensor& qkv, const AttentionShape& shape,
                               const at::Tensor& query_weight, const at::Tensor& key_weight, double epsilon,
                               const at::Tensor& query_weight_gradient, const at::Tensor& key_weight_gradient);

// RMSNorm over all queries of a row together, and over all its keys. If a rank holds only some of the heads, the caller
// must add up the sums of all ranks, both forward and backward.
struct ProjectionNorm {
  at::Tensor query_weight, key_weight;  // [heads * head_dim] and [kv_heads * head_dim] of the local heads
  int64_t query_width, key_width;       // heads * head_dim and kv_heads * head_dim of all ranks
  double epsilon;
};
// Computes each row's sums of squares of its local queries and keys: [rows, 2], master dtype.
at::Tensor projection_squares(const at::Tensor& qkv, const AttentionShape& shape);
// Normalises by the squares summed over all ranks. Copies values unchanged.
at::Tensor normalize_projections(const at::Tensor& qkv, const AttentionShape& shape, const ProjectionNorm& norm,
                                 const at::Tensor& squares);
// Computes each row's sums of gradient * weight * qkv over its local queries and keys: [rows, 2], master dtype.
at::Tensor projection_products(const at::Tensor& gradient, const at::Tensor& qkv, const AttentionShape& shape,
                               const ProjectionNorm& norm);
// Overwrites the gradient of normalize_projections' result with the gradient of `qkv`, from the squares and products
// summed over all ranks. Adds the weights' gradients to query_weight_gradient and key_weight_gradient.
void normalize_projections_backward_(const at::Tensor& gradient, const at::Tensor& qkv, const AttentionShape& shape,
                                     const ProjectionNorm& norm, const at::Tensor& squares, const at::Tensor& products,
                                     const at::Tensor& query_weight_gradient, const at::Tensor& key_weight_gradient);

// Rotates the first r elements of each query and key head, in place. Backward rotates by the opposite angle, which
// gives the gradient. cosine and sine are [sequence, r / 2] or, if each row has its own angle, [batch * sequence, r /
// 2], in the master dtype.
void rotary_(const at::Tensor& qkv, const AttentionShape& shape, const at::Tensor& cosine, const at::Tensor& sine,
             bool backward);

struct AttentionResult {
  at::Tensor output;       // [batch * sequence, heads * head_dim]
  at::Tensor log_sum_exp;  // [batch, heads, sequence]; with documents on a GPU [heads, batch * sequence]
};
// Computes causal softmax(scale q k^T) v with the shape's scale, soft-cap, window and documents.
AttentionResult attention(const at::Tensor& qkv, const AttentionShape& shape);
// Computes the gradient of qkv (with rotated queries and keys).
at::Tensor attention_backward(const at::Tensor& output_gradient, const at::Tensor& qkv, const AttentionResult& forward,
                              const AttentionShape& shape);
// Attention of new queries over a cache, for generation. query: [batch, heads, n, head_dim]; key, value: [batch,
// kv_heads, length, head_dim]. Query i sees the keys at positions <= length - n + i, at most the last `window` of them
// (0: all). Returns [batch, n, heads * head_dim].
at::Tensor cached_attention(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                            const AttentionShape& shape);

struct Activation {
  ActivationFunction function = ActivationFunction::silu;
  bool is_gated = true;
};
// Computes function(gate) * up, [rows, f], from `input` [rows, 2 f] (gate, then up). Without a gate: function(input).
at::Tensor activate(const at::Tensor& input, const Activation& activation);
struct ActivationGradient {
  at::Tensor input;       // gradient of the input, with its shape
  at::Tensor activation;  // recomputed result of activate(), [rows, f]
};
// Computes the gradient. The results may reuse the memory of both arguments, which must not be read afterwards.
ActivationGradient activate_backward(const at::Tensor& activation_gradient, const at::Tensor& input,
                                     const Activation& activation);

// ---- embedding and loss -------------------------------------------------------------------------------------------

// Embedding and cross-entropy for a vocabulary that tensor parallelism may split. A part begins with token
// `first_token` and has `vocab` rows of the table, or columns of the logits.

at::Tensor embedding(const at::Tensor& weight, const at::Tensor& tokens);  // tokens int64 [rows] -> [rows, width]
// Looks up tokens in a part of the table. Tokens outside the part give zero rows.
at::Tensor embedding_part(const at::Tensor& weight, const at::Tensor& tokens, int64_t first_token);
// Adds gradient [vocab, width] += rows of dy at their tokens, in a fixed order. Skips tokens outside of the part.
void add_embedding_gradient(const at::Tensor& gradient, const at::Tensor& dy, const at::Tensor& tokens,
                            int64_t first_token);

// Adds the sum of the rows' losses to loss_sum (float64 scalar tensor). logits: [rows, vocab]; targets: int64 [rows].
// With `gradient`, overwrites the logits with loss_scale * d(loss)/d(logits). Here and below, a softcap replaces the
// logits x by softcap tanh(x / softcap); the gradient is still with respect to x.
void cross_entropy_(const at::Tensor& logits, const at::Tensor& targets, double loss_scale, bool gradient,
                    const at::Tensor& loss_sum, double softcap = 0);

// Computes softmax statistics over the local columns: float64 [rows, 3] with the largest logit, the sum of exp(logit -
// largest), and the target's logit (0 if its column is not local).
at::Tensor softmax_statistics(const at::Tensor& logits, const at::Tensor& targets, int64_t first_token,
                              double softcap = 0);
// cross_entropy_ for rows whose columns are split into parts. `statistics`: of all parts, [parts, rows, 3], in the
// order of the vocabulary. Every part adds the loss of the whole row.
void cross_entropy_part_(const at::Tensor& logits, const at::Tensor& targets, int64_t first_token,
                         const at::Tensor& statistics, double loss_scale, bool gradient, const at::Tensor& loss_sum,
                         double softcap = 0);
// Computes softcap tanh(logits / softcap).
at::Tensor soft_cap(const at::Tensor& logits, double softcap);

// ---- optimizer ----------------------------------------------------------------------------------------------------

struct AdamWStep {
  double lr, beta1, beta2, epsilon, weight_decay;
  double gradient_scale;                      // factor on the gradient, applied first (clipping)
  double bias_correction1, bias_correction2;  // 1 - beta^t
};
// Updates flat ranges of equal length in place, like torch.optim.AdamW with decoupled weight decay (Loshchilov & Hutter
// 2019).
void adamw_(const AdamWState<at::Tensor>& state, const at::Tensor& gradient, const AdamWStep& step);

struct SignumStep {
  double lr, beta, weight_decay;
  double gradient_scale;  // factor on the gradient, applied first (clipping)
};
// Updates flat ranges of equal length in place by Signum (Bernstein et al. 2018, arXiv 1802.04434) with decoupled
// weight decay: momentum = beta momentum + (1 - beta) gradient; master -= lr (sign(momentum) + weight_decay master).
void signum_(const at::Tensor& master, const at::Tensor& momentum, const at::Tensor& gradient, const SignumStep& step);

struct MuonStep {
  double lr, momentum, weight_decay;
  double gradient_scale;  // factor on the gradient, applied first (clipping)
};
// Updates flat ranges of equal length in place by Muon with decoupled weight decay, given the direction: master -= lr
// (direction + weight_decay master). Then zeroes the direction, and adds the gradient to the moving average: average =
// momentum average + (1 - momentum) gradient.
void muon_(const at::Tensor& master, const at::Tensor& average, const at::Tensor& direction, const at::Tensor& gradient,
           const MuonStep& step);

// Returns first_weight * first + second_weight * second for flat tensors of equal length.
at::Tensor weighted_sum(const at::Tensor& first, double first_weight, const at::Tensor& second, double second_weight);

// Returns a matrix with the singular vectors of `matrix` [m, n]. Its singular values are the polynomials of the
// singular values of matrix / |matrix| (Frobenius norm). Computes in `dtype`; the result has the dtype of `matrix`.
at::Tensor map_singular_values(const at::Tensor& matrix, std::span<const QuinticPolynomial> polynomials,
                               at::ScalarType dtype);

inline constexpr int64_t squared_norm_block = 64;

// Returns the squared norm of the elements begin .. end of a flat contiguous tensor. Squares are in the tensor's dtype,
// sums within blocks of squared_norm_block elements in float64, and the sum over blocks is exact. So the result is the
// same for any number of threads, and for ranks that split a tensor at multiples of squared_norm_block. Waits for the
// result.
ExactSum squared_norm(const at::Tensor& flat, int64_t begin, int64_t end);

// A squared norm of many ranges, summed on their device. Only take() waits for the device.
class NormSum {
 public:
  // All tensors must be on this device.
  explicit NormSum(at::Device device);
  // Adds squared_norm(flat, begin, end).
  void add(const at::Tensor& flat, int64_t begin, int64_t end);
  // Returns the sum since the last take(), and waits for the device.
  ExactSum take();

 private:
  ExactSum sum_;      // of tensors that GPU kernels do not accept
  at::Tensor words_;  // words of an ExactSum, on a GPU
};

// Copies master weights into compute weights, rounding to nearest, ties to even.
void round_to(const at::Tensor& from, const at::Tensor& to);

// ---- device -------------------------------------------------------------------------------------------------------

// Returns the seconds of one n x n x n matrix product in `dtype`: the best of a few.
double time_matmul(int64_t n, at::ScalarType dtype, at::Device device);
void set_num_threads(int64_t threads);
int64_t num_threads();
void synchronize(at::Device device);

}  // namespace copus::kernels
