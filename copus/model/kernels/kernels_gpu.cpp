// GPU kernels: allocates the results of the kernels in gpu/, and launches these kernels on the current stream. No call
// waits.
#include <cmath>
#include <vector>

#include "copus/base/error.h"
#include "copus/base/numbers/exact_sum.h"
#include "copus/description/model_description.h"
#include "copus/model/gpu/kernels.h"
#include "copus/model/kernels/device_stream.h"
#include "copus/model/kernels/kernel_implementations.h"

namespace copus::kernels::on_gpu {

static_assert(gpu::ignored_target == ignored_target);
static_assert(gpu::squared_norm_block == squared_norm_block);

namespace {

// Rows per block of column sums: few enough for many blocks, and enough for few partial sums.
constexpr int64_t rows_per_column_sum = 256;
// Up to this number of rows are summed in one pass.
constexpr int64_t few_rows = 1024;

gpu::Storage storage(const at::Tensor& tensor) {
  COPUS_CHECK(tensor.scalar_type() == at::kFloat || tensor.scalar_type() == at::kBFloat16);
  return tensor.scalar_type() == at::kFloat ? gpu::Storage::float32 : gpu::Storage::bfloat16;
}

void* data(const at::Tensor& tensor) { return tensor.defined() ? tensor.data_ptr() : nullptr; }

template <class T>
T* data(const at::Tensor& tensor) {
  return static_cast<T*>(data(tensor));
}

void* stream_of(const at::Tensor& tensor) { return current_stream_handle(tensor.device()); }

int64_t divide_up(int64_t a, int64_t b) { return (a + b - 1) / b; }

}  // namespace

NormResult add_norm(const at::Tensor& residual, const at::Tensor& delta, const at::Tensor& weight,
                    const at::Tensor& bias, double epsilon) {
  const int64_t rows = residual.size(0), width = residual.size(1);
  if (width > gpu::widest_norm) return generic::add_norm(residual, delta, weight, bias, epsilon);
  NormResult result;
  result.sum = delta.defined() ? empty({rows, width}, residual.scalar_type(), residual.device()) : residual;
  result.normed = empty({rows, width}, residual.scalar_type(), residual.device());
  const std::vector<int64_t> shape = bias.defined() ? std::vector<int64_t>{rows, 2} : std::vector<int64_t>{rows};
  result.statistics = empty(shape, at::kFloat, residual.device());
  gpu::norm_forward({.storage = storage(residual),
                     .rows = rows,
                     .width = width,
                     .epsilon = static_cast<float>(epsilon),
                     .residual = data(residual),
                     .delta = data(delta),
                     .weight = data(weight),
                     .bias = data(bias),
                     .sum = data(result.sum),
                     .normed = data(result.normed),
                     .statistics = data<float>(result.statistics)},
                    stream_of(residual));
  return result;
}

at::Tensor norm_backward(const at::Tensor& dy, const at::Tensor& input, const at::Tensor& statistics,
                         const at::Tensor& weight, const at::Tensor& residual_gradient,
                         const at::Tensor& weight_gradient) {
  const int64_t rows = dy.size(0), width = dy.size(1);
  if (width > gpu::widest_norm) {
    return generic::norm_backward(dy, input, statistics, weight, residual_gradient, weight_gradient);
  }
  at::Tensor input_gradient = empty({rows, width}, dy.scalar_type(), dy.device());
  const at::Tensor partial_sums =
      empty({divide_up(rows, gpu::norm_rows_per_partial_sum), width}, at::kFloat, dy.device());
  gpu::norm_backward({.storage = storage(dy),
                      .is_layer = statistics.dim() == 2,
                      .rows = rows,
                      .width = width,
                      .output_gradient = data(dy),
                      .input = data(input),
                      .weight = data(weight),
                      .statistics = data<float>(statistics),
                      .residual_gradient = data(residual_gradient),
                      .input_gradient = data(input_gradient),
                      .weight_gradients = data<float>(partial_sums)},
                     stream_of(dy));
  add_linear_bias_gradient(weight_gradient, partial_sums);
  return input_gradient;
}

at::Tensor normalize_heads(const at::Tensor& qkv, const AttentionShape& shape, const at::Tensor& query_weight,
                           const at::Tensor& key_weight, double epsilon) {
  at::Tensor normed = empty(qkv.sizes(), qkv.scalar_type(), qkv.device());
  gpu::head_norm_forward({.storage = storage(qkv),
                          .rows = qkv.size(0),
                          .heads = shape.heads,
                          .kv_heads = shape.kv_heads,
                          .head_dim = shape.head_dim,
                          .epsilon = static_cast<float>(epsilon),
                          .qkv = data(qkv),
                          .query_weight = data(query_weight),
                          .key_weight = data(key_weight),
                          .normed = data(normed)},
                         stream_of(qkv));
  return normed;
}

void normalize_heads_backward_(const at::Tensor& gradient, const at::Tensor& qkv, const AttentionShape& shape,
                               const at::Tensor& query_weight, const at::Tensor& key_weight, double epsilon,
                               const at::Tensor& query_weight_gradient, const at::Tensor& key_weight_gradient) {
  if (shape.head_dim > gpu::widest_normed_head) {
    return generic::normalize_heads_backward_(gradient, qkv, shape, query_weight, key_weight, epsilon,
                                              query_weight_gradient, key_weight_gradient);
  }
  const int64_t partial_sums = divide_up(qkv.size(0), gpu::norm_rows_per_partial_sum) * gpu::head_norm_warps;
  const at::Tensor queries = empty({partial_sums, shape.head_dim}, at::kFloat, qkv.device());
  const at::Tensor keys = empty({partial_sums, shape.head_dim}, at::kFloat, qkv.device());
  gpu::head_norm_backward({.storage = storage(qkv),
                           .rows = qkv.size(0),
                           .heads = shape.heads,
                           .kv_heads = shape.kv_heads,
                           .head_dim = shape.head_dim,
                           .epsilon = static_cast<float>(epsilon),
                           .qkv = data(qkv),
                           .query_weight = data(query_weight),
                           .key_weight = data(key_weight),
                           .gradient = data(gradient),
                           .query_weight_gradients = data<float>(queries),
                           .key_weight_gradients = data<float>(keys)},
                          stream_of(qkv));
  add_linear_bias_gradient(query_weight_gradient, queries);
  add_linear_bias_gradient(key_weight_gradient, keys);
}

void rotary_(const at::Tensor& qkv, const AttentionShape& shape, const at::Tensor& cosine, const at::Tensor& sine,
             bool backward) {
  const bool is_partial = 2 * cosine.size(1) != shape.head_dim;
  if (is_partial || shape.head_dim > gpu::widest_rotary_head) {
    return generic::rotary_(qkv, shape, cosine, sine, backward);
  }
  gpu::rotary({.storage = storage(qkv),
               .rows = qkv.size(0),
               .angles = cosine.size(0),
               .heads = shape.heads + shape.kv_heads,
               .head_dim = shape.head_dim,
               .row_stride = shape.row(),
               .data = data(qkv),
               .cosine = data<float>(cosine),
               .sine = data<float>(sine),
               .backward = backward},
              stream_of(qkv));
}

namespace {

gpu::ActivationFunction function_of(const Activation& kind) {
  static_assert(static_cast<int>(ActivationFunction::gelu_tanh) ==
                static_cast<int>(gpu::ActivationFunction::gelu_tanh));
  static_assert(static_cast<int>(ActivationFunction::gelu) == static_cast<int>(gpu::ActivationFunction::gelu));
  return static_cast<gpu::ActivationFunction>(kind.function);
}

}  // namespace

at::Tensor activate(const at::Tensor& input, const Activation& kind) {
  const int64_t rows = input.size(0), width = input.size(1) / (kind.is_gated ? 2 : 1);
  at::Tensor activation = empty({rows, width}, input.scalar_type(), input.device());
  gpu::activation_forward(
      {storage(input), function_of(kind), kind.is_gated, rows, width, data(input), data(activation)}, stream_of(input));
  return activation;
}

ActivationGradient activate_backward(const at::Tensor& activation_gradient, const at::Tensor& input,
                                     const Activation& kind) {
  gpu::activation_backward({storage(input), function_of(kind), kind.is_gated, input.size(0),
                            activation_gradient.size(1), data(input), data(activation_gradient)},
                           stream_of(input));
  return {input, activation_gradient};
}

void add_linear_bias_gradient(const at::Tensor& gradient, const at::Tensor& dy) {
  const int64_t width = dy.size(1);
  at::Tensor from = dy;
  while (from.size(0) > few_rows) {
    const at::Tensor sums = empty({divide_up(from.size(0), rows_per_column_sum), width}, at::kFloat, dy.device());
    gpu::column_sums({storage(from), from.size(0), width, rows_per_column_sum, data(from), data<float>(sums), false},
                     stream_of(dy));
    from = sums;
  }
  gpu::column_sums({storage(from), from.size(0), width, few_rows, data(from), data<float>(gradient), true},
                   stream_of(dy));
}

at::Tensor embedding_part(const at::Tensor& weight, const at::Tensor& tokens, int64_t first_token) {
  const int64_t rows = tokens.size(0), width = weight.size(1);
  at::Tensor out = empty({rows, width}, weight.scalar_type(), weight.device());
  gpu::embedding_part({.storage = storage(weight),
                       .first_token = first_token,
                       .vocab = weight.size(0),
                       .rows = rows,
                       .width = width,
                       .table = data(weight),
                       .tokens = data<int64_t>(tokens),
                       .out = data(out)},
                      stream_of(weight));
  return out;
}

void add_embedding_gradient(const at::Tensor& gradient, const at::Tensor& dy, const at::Tensor& tokens,
                            int64_t first_token) {
  const int64_t rows = dy.size(0), width = dy.size(1);
  const at::Tensor keys = empty({2, rows}, at::kLong, dy.device());
  const at::Tensor partial_sums = empty({2, divide_up(rows, gpu::embedding_tile), width}, at::kFloat, dy.device());
  gpu::add_embedding_gradient({.storage = storage(dy),
                               .first_token = first_token,
                               .vocab = gradient.size(0),
                               .rows = rows,
                               .width = width,
                               .output_gradient = data(dy),
                               .tokens = data<int64_t>(tokens),
                               .gradient = data<float>(gradient),
                               .tile_keys = data<int64_t>(keys),
                               .sorted_keys = data<int64_t>(keys) + rows,
                               .partial_sums = data<float>(partial_sums)},
                              stream_of(dy));
}

void cross_entropy_part_(const at::Tensor& logits, const at::Tensor& targets, int64_t first_token,
                         const at::Tensor& statistics, double loss_scale, bool gradient, const at::Tensor& loss_sum,
                         double softcap) {
  const int64_t rows = logits.size(0);
  const at::Tensor losses = empty({rows}, at::kDouble, logits.device());
  gpu::cross_entropy({.storage = storage(logits),
                      .first_token = first_token,
                      .vocab = logits.size(1),
                      .rows = rows,
                      .softcap = static_cast<float>(softcap),
                      .gradient = gradient,
                      .loss_scale = static_cast<float>(loss_scale),
                      .logits = data(logits),
                      .targets = data<int64_t>(targets),
                      .statistics = data<double>(statistics),
                      .parts = statistics.defined() ? statistics.size(0) : 1,
                      .losses = data<double>(losses),
                      .loss_sum = data<double>(loss_sum)},
                     stream_of(logits));
}

void cross_entropy_(const at::Tensor& logits, const at::Tensor& targets, double loss_scale, bool gradient,
                    const at::Tensor& loss_sum, double softcap) {
  cross_entropy_part_(logits, targets, 0, {}, loss_scale, gradient, loss_sum, softcap);
}

at::Tensor softmax_statistics(const at::Tensor& logits, const at::Tensor& targets, int64_t first_token,
                              double softcap) {
  const int64_t rows = logits.size(0);
  at::Tensor statistics = empty({rows, 3}, at::kDouble, logits.device());
  gpu::softmax_statistics({storage(logits), first_token, logits.size(1), rows, static_cast<float>(softcap),
                           data(logits), data<int64_t>(targets), data<double>(statistics)},
                          stream_of(logits));
  return statistics;
}

void adamw_(const AdamWState<at::Tensor>& state, const at::Tensor& gradient, const AdamWStep& step) {
  gpu::adamw({.count = state.master.numel(),
              .state = state.map([](const at::Tensor& tensor) { return data<float>(tensor); }),
              .gradient = data<float>(gradient),
              .beta1 = static_cast<float>(step.beta1),
              .beta2 = static_cast<float>(step.beta2),
              .new1 = static_cast<float>(1 - step.beta1),
              .new2 = static_cast<float>(1 - step.beta2),
              .keep = static_cast<float>(1 - step.lr * step.weight_decay),
              .step = static_cast<float>(step.lr / step.bias_correction1),
              .root_correction = static_cast<float>(1 / std::sqrt(step.bias_correction2)),
              .epsilon = static_cast<float>(step.epsilon),
              .gradient_scale = static_cast<float>(step.gradient_scale)},
             stream_of(state.master));
}

void signum_(const at::Tensor& master, const at::Tensor& momentum, const at::Tensor& gradient, const SignumStep& step) {
  gpu::signum({.count = master.numel(),
               .master = data<float>(master),
               .momentum = data<float>(momentum),
               .gradient = data<float>(gradient),
               .beta = static_cast<float>(step.beta),
               .new_share = static_cast<float>(1 - step.beta),
               .keep = static_cast<float>(1 - step.lr * step.weight_decay),
               .step = static_cast<float>(step.lr),
               .gradient_scale = static_cast<float>(step.gradient_scale)},
              stream_of(master));
}

void add_squared_norm(const at::Tensor& words, const at::Tensor& flat, int64_t begin, int64_t end) {
  COPUS_CHECK(words.numel() == ExactSum::num_words && flat.scalar_type() == at::kFloat);
  gpu::add_squared_norm({data<float>(flat), begin, end, data<int64_t>(words)}, stream_of(flat));
}

void round_to(const at::Tensor& from, const at::Tensor& to) {
  COPUS_CHECK(from.scalar_type() == at::kFloat && to.scalar_type() == at::kBFloat16);
  gpu::round_to_bfloat16(data<float>(from), data(to), from.numel(), stream_of(from));
}

}  // namespace copus::kernels::on_gpu
