// CPU kernels: runs the kernels of cpu/ on ATen's thread pool. Work is split at fixed places, so no result depends on
// the number of threads.

#include <ATen/Parallel.h>

#include <algorithm>
#include <cmath>
#include <mutex>
#include <vector>

#include "copus/description/model_description.h"
#include "copus/model/cpu/kernels.h"
#include "copus/model/kernels/kernel_implementations.h"

namespace copus::kernels::on_cpu {

static_assert(cpu::ignored_target == ignored_target);

namespace {

constexpr int64_t rows_per_task = 16;
// Rows per partial sum of a weight gradient. This fixes the order of the sum.
constexpr int64_t rows_per_partial_sum = 64;
constexpr int64_t elements_per_block = 16384;  // a multiple of bucket_alignment

template <class S>
S* data(const at::Tensor& tensor) {
  return tensor.defined() ? static_cast<S*>(tensor.data_ptr()) : nullptr;
}

// Calls f with a value of the storage type of the tensor's dtype.
template <class F>
decltype(auto) with_storage_type(const at::Tensor& tensor, F f) {
  switch (tensor.scalar_type()) {
    case at::kFloat:
      return f(float{});
    case at::kDouble:
      return f(double{});
    default:
      return f(cpu::BFloat16{});
  }
}

template <class F>
void parallel_rows(int64_t rows, F f) {
  at::parallel_for(0, rows, rows_per_task, f);
}

at::Tensor empty_statistics(int64_t rows, const at::Tensor& bias, const at::Tensor& stream) {
  const std::vector<int64_t> shape = bias.defined() ? std::vector<int64_t>{rows, 2} : std::vector<int64_t>{rows};
  return empty(shape, master_dtype(stream), stream.device());
}

cpu::ActivationFunction function_of(const Activation& kind) {
  static_assert(static_cast<int>(ActivationFunction::gelu_tanh) ==
                static_cast<int>(cpu::ActivationFunction::gelu_tanh));
  static_assert(static_cast<int>(ActivationFunction::gelu) == static_cast<int>(cpu::ActivationFunction::gelu));
  return static_cast<cpu::ActivationFunction>(kind.function);
}

int64_t count_blocks(const at::Tensor& flat) { return (flat.numel() + elements_per_block - 1) / elements_per_block; }

// Calls work(begin, end) for ranges of elements, on several threads.
template <class Work>
void for_blocks(const at::Tensor& flat, const Work& work) {
  at::parallel_for(0, count_blocks(flat), 1, [&](int64_t begin, int64_t end) {
    work(begin * elements_per_block, std::min(flat.numel(), end * elements_per_block));
  });
}

}  // namespace

NormResult add_norm(const at::Tensor& residual, const at::Tensor& delta, const at::Tensor& weight,
                    const at::Tensor& bias, double epsilon) {
  const int64_t rows = residual.size(0), width = residual.size(1);
  NormResult result;
  result.sum = delta.defined() ? empty({rows, width}, residual.scalar_type(), residual.device()) : residual;
  result.normed = empty({rows, width}, residual.scalar_type(), residual.device());
  result.statistics = empty_statistics(rows, bias, residual);
  with_storage_type(residual, [&]<class S>(S) {
    using C = cpu::Compute<S>;
    const cpu::NormForward<S> arguments{.width = width,
                                        .epsilon = static_cast<C>(epsilon),
                                        .residual = data<S>(residual),
                                        .delta = data<S>(delta),
                                        .weight = data<S>(weight),
                                        .bias = data<S>(bias),
                                        .sum = data<S>(result.sum),
                                        .normed = data<S>(result.normed),
                                        .statistics = data<C>(result.statistics)};
    parallel_rows(rows, [&](int64_t begin, int64_t end) { cpu::kernels<S>().norm_forward(arguments, begin, end); });
  });
  return result;
}

at::Tensor norm_backward(const at::Tensor& dy, const at::Tensor& input, const at::Tensor& statistics,
                         const at::Tensor& weight, const at::Tensor& residual_gradient,
                         const at::Tensor& weight_gradient) {
  const int64_t rows = dy.size(0), width = dy.size(1);
  const int64_t partial_sums = (rows + rows_per_partial_sum - 1) / rows_per_partial_sum;
  at::Tensor input_gradient = empty({rows, width}, dy.scalar_type(), dy.device());
  const at::Tensor partial = empty({partial_sums, width}, master_dtype(dy), dy.device());
  with_storage_type(dy, [&]<class S>(S) {
    using C = cpu::Compute<S>;
    at::parallel_for(0, partial_sums, 1, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const cpu::NormBackward<S> arguments{statistics.dim() == 2,
                                             width,
                                             data<S>(dy),
                                             data<S>(input),
                                             data<S>(weight),
                                             data<C>(statistics),
                                             data<S>(residual_gradient),
                                             data<S>(input_gradient),
                                             data<C>(partial) + i * width};
        cpu::kernels<S>().norm_backward(arguments, i * rows_per_partial_sum,
                                        std::min(rows, (i + 1) * rows_per_partial_sum));
      }
    });
  });
  add_linear_bias_gradient(weight_gradient, partial);
  return input_gradient;
}

at::Tensor normalize_heads(const at::Tensor& qkv, const AttentionShape& shape, const at::Tensor& query_weight,
                           const at::Tensor& key_weight, double epsilon) {
  at::Tensor normed = empty(qkv.sizes(), qkv.scalar_type(), qkv.device());
  with_storage_type(qkv, [&]<class S>(S) {
    const cpu::HeadNormForward<S> arguments{
        shape.heads,  shape.kv_heads,        shape.head_dim,      static_cast<cpu::Compute<S>>(epsilon),
        data<S>(qkv), data<S>(query_weight), data<S>(key_weight), data<S>(normed)};
    parallel_rows(qkv.size(0),
                  [&](int64_t begin, int64_t end) { cpu::kernels<S>().head_norm_forward(arguments, begin, end); });
  });
  return normed;
}

void normalize_heads_backward_(const at::Tensor& gradient, const at::Tensor& qkv, const AttentionShape& shape,
                               const at::Tensor& query_weight, const at::Tensor& key_weight, double epsilon,
                               const at::Tensor& query_weight_gradient, const at::Tensor& key_weight_gradient) {
  const int64_t rows = qkv.size(0), width = shape.head_dim;
  const int64_t partial_sums = (rows + rows_per_partial_sum - 1) / rows_per_partial_sum;
  const at::Tensor queries = empty({partial_sums, width}, master_dtype(qkv), qkv.device());
  const at::Tensor keys = empty({partial_sums, width}, master_dtype(qkv), qkv.device());
  with_storage_type(qkv, [&]<class S>(S) {
    using C = cpu::Compute<S>;
    at::parallel_for(0, partial_sums, 1, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const cpu::HeadNormBackward<S> arguments{shape.heads,
                                                 shape.kv_heads,
                                                 width,
                                                 static_cast<C>(epsilon),
                                                 data<S>(qkv),
                                                 data<S>(query_weight),
                                                 data<S>(key_weight),
                                                 data<S>(gradient),
                                                 data<C>(queries) + i * width,
                                                 data<C>(keys) + i * width};
        cpu::kernels<S>().head_norm_backward(arguments, i * rows_per_partial_sum,
                                             std::min(rows, (i + 1) * rows_per_partial_sum));
      }
    });
  });
  add_linear_bias_gradient(query_weight_gradient, queries);
  add_linear_bias_gradient(key_weight_gradient, keys);
}

namespace {

template <class S>
cpu::ProjectionNorm<S> projection_norm(const at::Tensor& qkv, const AttentionShape& shape, const ProjectionNorm& norm,
                                       const at::Tensor& squares) {
  using C = cpu::Compute<S>;
  return {.widths = {shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim},
          .all_widths = {static_cast<C>(norm.query_width), static_cast<C>(norm.key_width)},
          .epsilon = static_cast<C>(norm.epsilon),
          .qkv = data<S>(qkv),
          .weights = {data<S>(norm.query_weight), data<S>(norm.key_weight)},
          .squares = data<C>(squares)};
}

// Without `gradient`, sums squares and ignores `norm`.
at::Tensor projection_sums(const at::Tensor& gradient, const at::Tensor& qkv, const AttentionShape& shape,
                           const ProjectionNorm& norm) {
  at::Tensor sums = empty({qkv.size(0), 2}, master_dtype(qkv), qkv.device());
  with_storage_type(qkv, [&]<class S>(S) {
    const cpu::ProjectionSums<S> arguments{{shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim},
                                           data<S>(qkv),
                                           data<S>(gradient),
                                           {data<S>(norm.query_weight), data<S>(norm.key_weight)},
                                           data<cpu::Compute<S>>(sums)};
    parallel_rows(qkv.size(0),
                  [&](int64_t begin, int64_t end) { cpu::kernels<S>().projection_sums(arguments, begin, end); });
  });
  return sums;
}

}  // namespace

at::Tensor projection_squares(const at::Tensor& qkv, const AttentionShape& shape) {
  return projection_sums({}, qkv, shape, {});
}

at::Tensor projection_products(const at::Tensor& gradient, const at::Tensor& qkv, const AttentionShape& shape,
                               const ProjectionNorm& norm) {
  return projection_sums(gradient, qkv, shape, norm);
}

at::Tensor normalize_projections(const at::Tensor& qkv, const AttentionShape& shape, const ProjectionNorm& norm,
                                 const at::Tensor& squares) {
  at::Tensor normed = empty(qkv.sizes(), qkv.scalar_type(), qkv.device());
  with_storage_type(qkv, [&]<class S>(S) {
    cpu::ProjectionNorm<S> arguments = projection_norm<S>(qkv, shape, norm, squares);
    arguments.normed = data<S>(normed);
    parallel_rows(qkv.size(0), [&](int64_t begin, int64_t end) {
      cpu::kernels<S>().projection_norm_forward(arguments, begin, end);
    });
  });
  return normed;
}

void normalize_projections_backward_(const at::Tensor& gradient, const at::Tensor& qkv, const AttentionShape& shape,
                                     const ProjectionNorm& norm, const at::Tensor& squares, const at::Tensor& products,
                                     const at::Tensor& query_weight_gradient, const at::Tensor& key_weight_gradient) {
  const int64_t rows = qkv.size(0);
  const int64_t partial_sums = (rows + rows_per_partial_sum - 1) / rows_per_partial_sum;
  const at::Tensor queries = empty({partial_sums, norm.query_weight.numel()}, master_dtype(qkv), qkv.device());
  const at::Tensor keys = empty({partial_sums, norm.key_weight.numel()}, master_dtype(qkv), qkv.device());
  with_storage_type(qkv, [&]<class S>(S) {
    using C = cpu::Compute<S>;
    at::parallel_for(0, partial_sums, 1, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        cpu::ProjectionNorm<S> arguments = projection_norm<S>(qkv, shape, norm, squares);
        arguments.gradient = data<S>(gradient);
        arguments.products = data<C>(products);
        arguments.weight_gradients[0] = data<C>(queries) + i * queries.size(1);
        arguments.weight_gradients[1] = data<C>(keys) + i * keys.size(1);
        cpu::kernels<S>().projection_norm_backward(arguments, i * rows_per_partial_sum,
                                                   std::min(rows, (i + 1) * rows_per_partial_sum));
      }
    });
  });
  add_linear_bias_gradient(query_weight_gradient, queries);
  add_linear_bias_gradient(key_weight_gradient, keys);
}

void rotary_(const at::Tensor& qkv, const AttentionShape& shape, const at::Tensor& cosine, const at::Tensor& sine,
             bool backward) {
  with_storage_type(qkv, [&]<class S>(S) {
    using C = cpu::Compute<S>;
    const cpu::Rotary<S> arguments{cosine.size(0),  shape.heads + shape.kv_heads,
                                   shape.head_dim,  2 * cosine.size(1),
                                   shape.row(),     data<S>(qkv),
                                   data<C>(cosine), data<C>(sine),
                                   backward};
    parallel_rows(qkv.size(0), [&](int64_t begin, int64_t end) { cpu::kernels<S>().rotary(arguments, begin, end); });
  });
}

namespace {

// The columns of the query-key-value matrix at which the key heads and the value heads begin.
int64_t first_key(const AttentionShape& shape) { return shape.heads * shape.head_dim; }
int64_t first_value(const AttentionShape& shape) { return first_key(shape) + shape.kv_heads * shape.head_dim; }

template <class S>
cpu::AttentionInput<S> attention_input(const at::Tensor& qkv, const AttentionShape& shape) {
  const S* query = data<S>(qkv);
  return {shape.batch,
          shape.sequence,
          shape.heads,
          shape.kv_heads,
          shape.head_dim,
          shape.has_window() ? shape.window : shape.sequence,
          static_cast<cpu::Compute<S>>(shape.scale()),
          static_cast<cpu::Compute<S>>(shape.softcap),
          shape.row(),
          shape.heads * shape.head_dim,
          query,
          query + first_key(shape),
          query + first_value(shape),
          shape.documents.defined() ? shape.documents.starts.const_data_ptr<int64_t>() : nullptr};
}

// Runs one task per (sequence, kv head). Each thread has its own scratch memory.
template <class C, class F>
void parallel_heads(int64_t tasks, int64_t scratch_elements, at::ScalarType dtype, F f) {
  const int64_t threads = std::min<int64_t>(tasks, num_threads());
  const at::Tensor scratch = empty({threads, scratch_elements}, dtype, at::kCPU);
  at::parallel_for(0, threads, 1, [&](int64_t begin, int64_t end) {
    for (int64_t thread = begin; thread < end; ++thread) {
      for (int64_t task = thread * tasks / threads; task < (thread + 1) * tasks / threads; ++task) {
        f(task, data<C>(scratch) + thread * scratch_elements);
      }
    }
  });
}

}  // namespace

AttentionResult attention(const at::Tensor& qkv, const AttentionShape& shape) {
  AttentionResult result;
  result.output = empty({qkv.size(0), shape.heads * shape.head_dim}, qkv.scalar_type(), qkv.device());
  result.log_sum_exp = empty({shape.batch, shape.heads, shape.sequence}, master_dtype(qkv), qkv.device());
  with_storage_type(qkv, [&]<class S>(S) {
    using C = cpu::Compute<S>;
    const cpu::AttentionForward<S> arguments{attention_input<S>(qkv, shape), data<S>(result.output),
                                             data<C>(result.log_sum_exp)};
    const cpu::Kernels<S>& table = cpu::kernels<S>();
    parallel_heads<C>(shape.batch * shape.kv_heads, table.attention_forward_scratch(arguments), master_dtype(qkv),
                      [&](int64_t task, C* scratch) { table.attention_forward(arguments, task, scratch); });
  });
  return result;
}

at::Tensor attention_backward(const at::Tensor& output_gradient, const at::Tensor& qkv, const AttentionResult& forward,
                              const AttentionShape& shape) {
  at::Tensor qkv_gradient = empty({qkv.size(0), shape.row()}, qkv.scalar_type(), qkv.device());
  with_storage_type(qkv, [&]<class S>(S) {
    using C = cpu::Compute<S>;
    S* gradient = data<S>(qkv_gradient);
    const cpu::AttentionBackward<S> arguments{attention_input<S>(qkv, shape),
                                              data<S>(forward.output),
                                              data<S>(output_gradient),
                                              data<C>(forward.log_sum_exp),
                                              gradient,
                                              gradient + first_key(shape),
                                              gradient + first_value(shape)};
    const cpu::Kernels<S>& table = cpu::kernels<S>();
    parallel_heads<C>(shape.batch * shape.kv_heads, table.attention_backward_scratch(arguments), master_dtype(qkv),
                      [&](int64_t task, C* scratch) { table.attention_backward(arguments, task, scratch); });
  });
  return qkv_gradient;
}

at::Tensor activate(const at::Tensor& input, const Activation& kind) {
  const int64_t rows = input.size(0), width = input.size(1) / (kind.is_gated ? 2 : 1);
  at::Tensor activation = empty({rows, width}, input.scalar_type(), input.device());
  with_storage_type(input, [&]<class S>(S) {
    const cpu::ActivationForward<S> arguments{function_of(kind), kind.is_gated, width, data<S>(input),
                                              data<S>(activation)};
    parallel_rows(rows,
                  [&](int64_t begin, int64_t end) { cpu::kernels<S>().activation_forward(arguments, begin, end); });
  });
  return activation;
}

ActivationGradient activate_backward(const at::Tensor& activation_gradient, const at::Tensor& input,
                                     const Activation& kind) {
  with_storage_type(input, [&]<class S>(S) {
    const cpu::ActivationBackward<S> arguments{function_of(kind), kind.is_gated, activation_gradient.size(1),
                                               data<S>(input), data<S>(activation_gradient)};
    parallel_rows(input.size(0),
                  [&](int64_t begin, int64_t end) { cpu::kernels<S>().activation_backward(arguments, begin, end); });
  });
  return {input, activation_gradient};
}

void add_linear_bias_gradient(const at::Tensor& gradient, const at::Tensor& dy) {
  with_storage_type(dy, [&]<class S>(S) {
    at::parallel_for(0, dy.size(1), 64, [&](int64_t begin, int64_t end) {
      cpu::kernels<S>().add_column_sums(data<S>(dy), dy.size(0), dy.size(1), data<cpu::Compute<S>>(gradient), begin,
                                        end);
    });
  });
}

at::Tensor embedding_part(const at::Tensor& weight, const at::Tensor& tokens, int64_t first_token) {
  const int64_t rows = tokens.size(0), width = weight.size(1);
  at::Tensor out = empty({rows, width}, weight.scalar_type(), weight.device());
  with_storage_type(weight, [&]<class S>(S) {
    const cpu::EmbeddingPart<S> arguments{first_token,     weight.size(0),        width,
                                          data<S>(weight), data<int64_t>(tokens), data<S>(out)};
    parallel_rows(rows, [&](int64_t begin, int64_t end) { cpu::kernels<S>().embedding_part(arguments, begin, end); });
  });
  return out;
}

void add_embedding_gradient(const at::Tensor& gradient, const at::Tensor& dy, const at::Tensor& tokens,
                            int64_t first_token) {
  with_storage_type(dy, [&]<class S>(S) {
    at::parallel_for(0, dy.size(1), 64, [&](int64_t begin, int64_t end) {
      cpu::kernels<S>().add_embedding_gradient(data<S>(dy), data<int64_t>(tokens), dy.size(0), dy.size(1), first_token,
                                               gradient.size(0), data<cpu::Compute<S>>(gradient), begin, end);
    });
  });
}

namespace {

void fused_cross_entropy(const at::Tensor& logits, const at::Tensor& targets, int64_t first_token,
                         const at::Tensor& statistics, double loss_scale, bool gradient, const at::Tensor& loss_sum,
                         double softcap) {
  const int64_t rows = logits.size(0);
  std::vector<double> losses(rows);
  with_storage_type(logits, [&]<class S>(S) {
    const cpu::CrossEntropy<S> arguments{.first_token = first_token,
                                         .vocab = logits.size(1),
                                         .softcap = static_cast<cpu::Compute<S>>(softcap),
                                         .gradient = gradient,
                                         .loss_scale = loss_scale,
                                         .logits = data<S>(logits),
                                         .targets = data<int64_t>(targets),
                                         .losses = losses.data(),
                                         .statistics = data<double>(statistics),
                                         .parts = statistics.defined() ? statistics.size(0) : 1,
                                         .rows = rows};
    parallel_rows(rows, [&](int64_t begin, int64_t end) { cpu::kernels<S>().cross_entropy(arguments, begin, end); });
  });
  double sum = 0;
  for (const double loss : losses) sum += loss;
  *data<double>(loss_sum) += sum;
}

}  // namespace

void cross_entropy_(const at::Tensor& logits, const at::Tensor& targets, double loss_scale, bool gradient,
                    const at::Tensor& loss_sum, double softcap) {
  fused_cross_entropy(logits, targets, 0, {}, loss_scale, gradient, loss_sum, softcap);
}

at::Tensor softmax_statistics(const at::Tensor& logits, const at::Tensor& targets, int64_t first_token,
                              double softcap) {
  const int64_t rows = logits.size(0);
  at::Tensor statistics = empty({rows, 3}, at::kDouble, logits.device());
  with_storage_type(logits, [&]<class S>(S) {
    const cpu::SoftmaxStatistics<S> arguments{
        first_token,     logits.size(1),         static_cast<cpu::Compute<S>>(softcap),
        data<S>(logits), data<int64_t>(targets), data<double>(statistics)};
    parallel_rows(rows,
                  [&](int64_t begin, int64_t end) { cpu::kernels<S>().softmax_statistics(arguments, begin, end); });
  });
  return statistics;
}

void cross_entropy_part_(const at::Tensor& logits, const at::Tensor& targets, int64_t first_token,
                         const at::Tensor& statistics, double loss_scale, bool gradient, const at::Tensor& loss_sum,
                         double softcap) {
  fused_cross_entropy(logits, targets, first_token, statistics, loss_scale, gradient, loss_sum, softcap);
}

void adamw_(const AdamWState<at::Tensor>& state, const at::Tensor& gradient, const AdamWStep& step) {
  with_storage_type(state.master, [&]<class S>(S) {
    using C = cpu::Compute<S>;
    const cpu::AdamW<C> arguments{state.map([](const at::Tensor& tensor) { return data<C>(tensor); }),
                                  data<C>(gradient),
                                  step.lr,
                                  step.beta1,
                                  step.beta2,
                                  step.epsilon,
                                  step.weight_decay,
                                  step.gradient_scale,
                                  step.bias_correction1,
                                  step.bias_correction2};
    for_blocks(state.master, [&](int64_t begin, int64_t end) { cpu::kernels<S>().adamw(arguments, begin, end); });
  });
}

void signum_(const at::Tensor& master, const at::Tensor& momentum, const at::Tensor& gradient, const SignumStep& step) {
  with_storage_type(master, [&]<class S>(S) {
    using C = cpu::Compute<S>;
    const cpu::Signum<C> arguments{data<C>(master), data<C>(momentum), data<C>(gradient),  step.lr,
                                   step.beta,       step.weight_decay, step.gradient_scale};
    for_blocks(master, [&](int64_t begin, int64_t end) { cpu::kernels<S>().signum(arguments, begin, end); });
  });
}

void muon_(const at::Tensor& master, const at::Tensor& average, const at::Tensor& direction, const at::Tensor& gradient,
           const MuonStep& step) {
  with_storage_type(master, [&]<class S>(S) {
    using C = cpu::Compute<S>;
    const cpu::Muon<C> arguments{data<C>(master), data<C>(average), data<C>(direction), data<C>(gradient),
                                 step.lr,         step.momentum,    step.weight_decay,  step.gradient_scale};
    for_blocks(master, [&](int64_t begin, int64_t end) { cpu::kernels<S>().muon(arguments, begin, end); });
  });
}

at::Tensor weighted_sum(const at::Tensor& first, double first_weight, const at::Tensor& second, double second_weight) {
  at::Tensor sum = empty(first.sizes(), first.scalar_type(), first.device());
  with_storage_type(first, [&]<class S>(S) {
    using C = cpu::Compute<S>;
    const cpu::WeightedSum<C> arguments{data<C>(first), data<C>(second), static_cast<C>(first_weight),
                                        static_cast<C>(second_weight), data<C>(sum)};
    for_blocks(first, [&](int64_t begin, int64_t end) { cpu::kernels<S>().weighted_sum(arguments, begin, end); });
  });
  return sum;
}

ExactSum squared_norm(const at::Tensor& flat, int64_t begin, int64_t end) {
  ExactSum sum;
  std::mutex mutex;
  with_storage_type(flat, [&]<class S>(S) {
    const auto* values = data<cpu::Compute<S>>(flat);
    const int64_t first = begin / squared_norm_block, last = (end + squared_norm_block - 1) / squared_norm_block;
    at::parallel_for(first, last, elements_per_block / squared_norm_block, [&](int64_t from, int64_t to) {
      ExactSum part;
      for (int64_t block = from; block < to; ++block) {
        part.add(cpu::kernels<S>().squared_norm(values, std::max(begin, block * squared_norm_block),
                                                std::min(end, (block + 1) * squared_norm_block)));
      }
      const std::lock_guard guard(mutex);
      sum.add(part);
    });
  });
  return sum;
}

}  // namespace copus::kernels::on_cpu
