// Every tensor kernel that training calls. The model is written against this header and names no ATen operator itself.
// Most kernels are our own fused ones, on the CPU (cpu/) and on GPUs (gpu/). For tensors that those do not accept,
// compositions of ATen operators take over (kernels_generic.cpp).
//
// Activations are row-major [rows, width] in the compute dtype (float32, bfloat16, float64 in tests), one row per
// token. Main gradients and optimizer state are in the master dtype (float32; float64 in tests). Results are fresh
// tensors unless stated otherwise. On CUDA every call is ordered on the current stream, and only calls that touch host
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
// Makes a tensor over existing host memory, and calls `release` when no tensor refers to the memory any more.
at::Tensor over_host_memory(void* data, at::IntArrayRef shape, at::ScalarType dtype, std::function<void()> release);
at::Tensor zeros(at::IntArrayRef shape, at::ScalarType dtype, at::Device device);
// Copies from the host without waiting for a GPU; `data` may change as soon as the call returns.
at::Tensor from_host(const int64_t* data, at::IntArrayRef shape, at::Device device);
at::Tensor from_host(const double* data, at::IntArrayRef shape, at::ScalarType dtype, at::Device device);
// Copies a tensor's elements, in row-major order, to host memory and waits for them.
void copy_to_host(const at::Tensor& from, void* to);
void copy_from_host(const void* from, const at::Tensor& to);

// ---- linear layers ------------------------------------------------------------------------------------------------

// Computes x weight^T + bias, [rows, out], for x [rows, in], weight [out, in], bias [out] or undefined.
at::Tensor linear(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias);
// Computes dy weight, [rows, in], for dy [rows, out].
at::Tensor linear_input_gradient(const at::Tensor& dy, const at::Tensor& weight);
// Computes the same into `out`, rows of a larger matrix.
void linear_input_gradient_into(const at::Tensor& out, const at::Tensor& dy, const at::Tensor& weight);
// Adds gradient [out, in] += dy^T x. With a float32 gradient and bfloat16 factors, the product accumulates directly
// into the gradient if the device supports this. The first call finds out whether it does.
void add_linear_weight_gradient(const at::Tensor& gradient, const at::Tensor& dy, const at::Tensor& x);
// Adds gradient [out] += sum of dy's rows.
void add_linear_bias_gradient(const at::Tensor& gradient, const at::Tensor& dy);

// ---- decoder layer ------------------------------------------------------------------------------------------------

struct NormResult {
  at::Tensor sum;         // residual + delta (residual itself if delta is undefined)
  at::Tensor normed;      // the norm of the sum
  at::Tensor statistics;  // master dtype: RMSNorm's 1 / rms, [rows]; LayerNorm's mean and 1 / std, [rows, 2]
};
// Computes a + b, rounded to their dtype, as add_norm returns it in `sum`.
at::Tensor add(const at::Tensor& a, const at::Tensor& b);
// Computes factor * x.
at::Tensor multiply(const at::Tensor& x, double factor);
// Computes 1 + x.
at::Tensor add_one(const at::Tensor& x);
// Normalises rows: LayerNorm with a bias [width], RMSNorm if the bias is undefined.
NormResult add_norm(const at::Tensor& residual, const at::Tensor& delta, const at::Tensor& weight,
                    const at::Tensor& bias, double epsilon);

// Returns residual_gradient + the norm's input gradient (residual_gradient may be undefined), and adds the weight's
// gradient to weight_gradient [width]. The kind of norm follows from the shape of `statistics`. For the gradient of a
// bias use add_linear_bias_gradient.
at::Tensor norm_backward(const at::Tensor& dy, const at::Tensor& input, const at::Tensor& statistics,
                         const at::Tensor& weight, const at::Tensor& residual_gradient,
                         const at::Tensor& weight_gradient);

// The documents that sequences hold. Undefined: a sequence is one document.
struct Documents {
  at::Tensor starts;  // where the document of a position begins in its sequence, int64 [batch, sequence], ascending
  // The rows of [batch * sequence] at which documents begin, then the number of rows: int32 [documents + 1].
  at::Tensor bounds;
  int64_t longest = 0;  // the length of the longest document
  bool defined() const { return starts.defined(); }
};
// Makes them from the starts on the host, row by row. Does not wait for the device.
Documents documents_from_host(const int64_t* starts, int64_t batch, int64_t sequence, at::Device device);

// The shape of the fused query-key-value matrix [batch * sequence, (heads + 2 kv_heads) * head_dim]: a row holds the
// query heads, then the key heads, then the value heads.
struct AttentionShape {
  int64_t batch, sequence, heads, kv_heads, head_dim;
  // A query attends to its own position and to the window - 1 positions before it. 0: to all positions before it.
  int64_t window = 0;
  double multiplier = 0;     // of the scores; 0: 1 / sqrt(head_dim)
  double softcap = 0;        // scaled scores s become softcap tanh(s / softcap); 0: they stay
  Documents documents = {};  // a query attends to no position before its document
  double scale() const { return score_scale(multiplier, head_dim); }
  bool has_window() const { return window > 0 && window < sequence; }
  int64_t row() const { return (heads + 2 * kv_heads) * head_dim; }
};

// Normalises every query head and every key head of a row separately: RMSNorm (Zhang & Sennrich 2019) over head_dim,
// with one weight [head_dim] for all query heads and one for all key heads. Copies values unchanged.
at::Tensor normalize_heads(const at::Tensor& qkv, const AttentionShape& shape, const at::Tensor& query_weight,
                           const at::Tensor& key_weight, double epsilon);
// Replaces the gradient of normalize_heads' result by the gradient of `qkv`, in place, and adds the weights' gradients
// to query_weight_gradient and key_weight_gradient [head_dim].
void normalize_heads_backward_(const at::Tensor& gradient, const at::Tensor& qkv, const AttentionShape& shape,
                               const at::Tensor& query_weight, const at::Tensor& key_weight, double epsilon,
                               const at::Tensor& query_weight_gradient, const at::Tensor& key_weight_gradient);

// RMSNorm over all queries of a row together, and over all its keys. A rank may hold only some of the heads. Both
// directions need sums over the heads of all ranks, so callers add up the sums of the ranks.
struct ProjectionNorm {
  at::Tensor query_weight, key_weight;  // [heads * head_dim], [kv_heads * head_dim]: of the local heads
  int64_t query_width, key_width;       // heads * head_dim and kv_heads * head_dim of all ranks
  double epsilon;
};
// Computes the sums of squares of each row's queries and of its keys, [rows, 2], master dtype.
at::Tensor projection_squares(const at::Tensor& qkv, const AttentionShape& shape);
// Normalises with the squares summed over all ranks. Copies values unchanged.
at::Tensor normalize_projections(const at::Tensor& qkv, const AttentionShape& shape, const ProjectionNorm& norm,
                                 const at::Tensor& squares);
// Computes the sums of gradient * weight * qkv over each row's queries and over its keys, [rows, 2], master dtype.
at::Tensor projection_products(const at::Tensor& gradient, const at::Tensor& qkv, const AttentionShape& shape,
                               const ProjectionNorm& norm);
// Overwrites the gradient of normalize_projections' result with the gradient of `qkv`, given the squares and products
// of all ranks, and adds the weights' gradients to query_weight_gradient and key_weight_gradient.
void normalize_projections_backward_(const at::Tensor& gradient, const at::Tensor& qkv, const AttentionShape& shape,
                                     const ProjectionNorm& norm, const at::Tensor& squares, const at::Tensor& products,
                                     const at::Tensor& query_weight_gradient, const at::Tensor& key_weight_gradient);

// Rotates the first r elements of each query and key head in place. Backward rotates by the opposite angle, which gives
// the gradient. cosine and sine are [sequence, r / 2], or [batch * sequence, r / 2] if each row has its own angle, in
// the master dtype.
void rotary_(const at::Tensor& qkv, const AttentionShape& shape, const at::Tensor& cosine, const at::Tensor& sine,
             bool backward);

struct AttentionResult {
  at::Tensor output;       // [batch * sequence, heads * head_dim]
  at::Tensor log_sum_exp;  // [batch, heads, sequence]; with documents on a GPU [heads, batch * sequence]
};
// Computes causal softmax(scale q k^T) v with the shape's scale and soft-cap, within its window and documents.
AttentionResult attention(const at::Tensor& qkv, const AttentionShape& shape);
// Computes the gradient of qkv (with rotated queries and keys).
at::Tensor attention_backward(const at::Tensor& output_gradient, const at::Tensor& qkv, const AttentionResult& forward,
                              const AttentionShape& shape);
// Computes attention of new queries over a cache, for generation. query [batch, heads, n, head_dim]; key, value [batch,
// kv_heads, length, head_dim]. Query i sees the keys before position length - n + i + 1, or only the last `window` of
// them (0: all). Returns [batch, n, heads * head_dim].
at::Tensor cached_attention(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                            const AttentionShape& shape);

struct Activation {
  ActivationFunction function = ActivationFunction::silu;
  bool is_gated = true;
};
// Computes function(gate) * up, [rows, f], for `input` [rows, 2 f] (gate, then up); without a gate function(input)
// [rows, f].
at::Tensor activate(const at::Tensor& input, const Activation& activation);
struct ActivationGradient {
  at::Tensor input;       // the gradient, of the shape of the input
  at::Tensor activation;  // recomputed result of activate(), [rows, f]
};
// Computes the gradient. Its results may reuse the memory of either tensor, so do not read the tensors afterwards.
ActivationGradient activate_backward(const at::Tensor& activation_gradient, const at::Tensor& input,
                                     const Activation& activation);

// ---- embedding and loss -------------------------------------------------------------------------------------------

// Embedding and cross-entropy for a vocabulary that may be split into parts (tensor parallelism). `first_token` is the
// first token of this part, which has `vocab` rows of the table, or columns of the logits.

at::Tensor embedding(const at::Tensor& weight, const at::Tensor& tokens);  // tokens int64 [rows] -> [rows, width]
// Looks up tokens in a part of the table. Tokens outside the part give zero rows.
at::Tensor embedding_part(const at::Tensor& weight, const at::Tensor& tokens, int64_t first_token);
// Adds gradient [vocab, width] += rows of dy at their tokens, in a fixed order. Tokens outside the part add nothing.
void add_embedding_gradient(const at::Tensor& gradient, const at::Tensor& dy, const at::Tensor& tokens,
                            int64_t first_token);

// Adds the sum of the rows' losses to loss_sum (float64 scalar tensor). With `gradient`, replaces the logits by
// loss_scale * d(loss)/d(logits). logits [rows, vocab]; targets int64 [rows]. A softcap replaces the logits x by
// softcap tanh(x / softcap), here and below; the gradient is still the gradient of x.
void cross_entropy_(const at::Tensor& logits, const at::Tensor& targets, double loss_scale, bool gradient,
                    const at::Tensor& loss_sum, double softcap = 0);

// Computes statistics over the local columns for the softmax of whole rows: float64 [rows, 3] of the largest logit, the
// sum of exp(logit - largest), and the target's logit (0 if its column is not local).
at::Tensor softmax_statistics(const at::Tensor& logits, const at::Tensor& targets, int64_t first_token,
                              double softcap = 0);
// Computes cross_entropy_ of rows whose columns are split into parts, from the statistics of all parts, [parts, rows,
// 3] in the order of the vocabulary. Every part adds the same, whole loss.
void cross_entropy_part_(const at::Tensor& logits, const at::Tensor& targets, int64_t first_token,
                         const at::Tensor& statistics, double loss_scale, bool gradient, const at::Tensor& loss_sum,
                         double softcap = 0);
// Computes softcap tanh(logits / softcap).
at::Tensor soft_cap(const at::Tensor& logits, double softcap);

// ---- optimizer ----------------------------------------------------------------------------------------------------

struct AdamWStep {
  double lr, beta1, beta2, epsilon, weight_decay;
  double gradient_scale;                      // multiplies the gradient first (clipping)
  double bias_correction1, bias_correction2;  // 1 - beta^t
};
// Updates flat ranges of equal length in place, like torch.optim.AdamW: decoupled weight decay (Loshchilov & Hutter
// 2019).
void adamw_(const AdamWState<at::Tensor>& state, const at::Tensor& gradient, const AdamWStep& step);

struct SignumStep {
  double lr, beta, weight_decay;
  double gradient_scale;  // multiplies the gradient first (clipping)
};
// Updates flat ranges of equal length in place by Signum (Bernstein et al. 2018, arXiv 1802.04434) with decoupled
// weight decay: momentum = beta momentum + (1 - beta) gradient; master -= lr (sign(momentum) + weight_decay master).
void signum_(const at::Tensor& master, const at::Tensor& momentum, const at::Tensor& gradient, const SignumStep& step);

struct MuonStep {
  double lr, momentum, weight_decay;
  double gradient_scale;  // multiplies the gradient first (clipping)
};
// Updates flat ranges of equal length in place by Muon with decoupled weight decay, along a direction that is computed
// already: master -= lr (direction + weight_decay master). Then it zeroes the direction, and adds the gradient to the
// moving average: average = momentum average + (1 - momentum) gradient.
void muon_(const at::Tensor& master, const at::Tensor& average, const at::Tensor& direction, const at::Tensor& gradient,
           const MuonStep& step);

// Returns first_weight * first + second_weight * second for flat tensors of equal length.
at::Tensor weighted_sum(const at::Tensor& first, double first_weight, const at::Tensor& second, double second_weight);

// Returns, in the dtype of `matrix`, which has two dimensions, the matrix whose singular vectors are those of `matrix`
// and whose singular values are those of matrix / |matrix| (Frobenius norm) after the polynomials. Computes in `dtype`.
at::Tensor map_singular_values(const at::Tensor& matrix, std::span<const QuinticPolynomial> polynomials,
                               at::ScalarType dtype);

inline constexpr int64_t squared_norm_block = 64;

// Returns the squared norm of the elements begin .. end of a flat contiguous tensor. Squares are in the tensor's dtype,
// sums within blocks in float64, and the sum over blocks is exact. Blocks begin at multiples of squared_norm_block. So
// the result is the same for any number of threads, and for ranks that split a tensor at such multiples. Waits for the
// result.
ExactSum squared_norm(const at::Tensor& flat, int64_t begin, int64_t end);

// A squared norm of many ranges, summed on their device. Only take() makes the host wait.
class NormSum {
 public:
  // Sums over tensors on this device.
  explicit NormSum(at::Device device);
  // Adds what squared_norm returns for the same elements.
  void add(const at::Tensor& flat, int64_t begin, int64_t end);
  // Returns the sum since the last take. Waits for the device.
  ExactSum take();

 private:
  ExactSum sum_;      // of tensors that no GPU kernel accepts
  at::Tensor words_;  // words of an ExactSum, on a GPU
};

// Copies master weights into compute weights, rounding to nearest even.
void round_to(const at::Tensor& from, const at::Tensor& to);

// ---- device -------------------------------------------------------------------------------------------------------

// Measures the seconds of one n x n x n matrix product in `dtype`: the best of a few.
double time_matmul(int64_t n, at::ScalarType dtype, at::Device device);
void set_num_threads(int64_t threads);
int64_t num_threads();
void synchronize(at::Device device);

}  // namespace copus::kernels
