// Selects the implementation: fused CPU or GPU kernels for the tensors that they accept, otherwise the generic ones.
#include "copus/model/kernels/kernels.h"

#include <ATen/Parallel.h>

#include <utility>

#include "copus/model/kernels/kernel_implementations.h"
#include "copus/model/kernels/part_timer.h"

namespace copus::kernels {
namespace {

#ifdef COPUS_GPU_EMULATED
// In tests the GPU kernels run on CPU tensors.
constexpr bool has_gpu = true;
constexpr at::DeviceType gpu = at::kCPU;
#else
constexpr bool has_gpu = COPUS_HAS_GPU;
constexpr at::DeviceType gpu = at::kCUDA;  // libtorch's name for AMD's devices too
#endif

// Builds without GPU kernels need a stand-in, which is never selected.
#if COPUS_HAS_GPU || defined(COPUS_GPU_EMULATED)
namespace fused_on_gpu = on_gpu;
#else
namespace fused_on_gpu = generic;
#endif

bool runs_fused_on_gpu(const at::Tensor& tensor) {
  const at::ScalarType dtype = tensor.scalar_type();
  return has_gpu && tensor.device().type() == gpu && tensor.is_contiguous() &&
         (dtype == at::kFloat || dtype == at::kBFloat16);
}

bool runs_fused_on_cpu(const at::Tensor& tensor) {
  const at::ScalarType dtype = tensor.scalar_type();
  return tensor.device().is_cpu() && tensor.is_contiguous() &&
         (dtype == at::kFloat || dtype == at::kDouble || dtype == at::kBFloat16);
}

// Selects the implementation that accepts this tensor.
template <class Kernel>
Kernel* choose(const at::Tensor& tensor, Kernel* on_gpu, Kernel* on_cpu, Kernel* generic) {
  return runs_fused_on_gpu(tensor) ? on_gpu : runs_fused_on_cpu(tensor) ? on_cpu : generic;
}

// Selects the implementation of attention: the same one for both directions of a shape.
template <class Kernel>
Kernel* choose_attention(const at::Tensor& qkv, const AttentionShape& shape, Kernel* on_cpu, Kernel* by_cudnn,
                         Kernel* generic) {
  return runs_fused_on_cpu(qkv) ? on_cpu : on_cudnn::takes_attention(qkv, shape) ? by_cudnn : generic;
}

}  // namespace

#define COPUS_CHOOSE(tensor, kernel) choose(tensor, fused_on_gpu::kernel, on_cpu::kernel, generic::kernel)
#define COPUS_CHOOSE_WITHOUT_GPU(tensor, kernel) choose(tensor, generic::kernel, on_cpu::kernel, generic::kernel)

NormResult add_norm(const at::Tensor& residual, const at::Tensor& delta, const at::Tensor& weight,
                    const at::Tensor& bias, double epsilon) {
  const PartTimer timer(Part::elementwise);
  return COPUS_CHOOSE(residual, add_norm)(residual, delta, weight, bias, epsilon);
}

at::Tensor norm_backward(const at::Tensor& dy, const at::Tensor& input, const at::Tensor& statistics,
                         const at::Tensor& weight, const at::Tensor& residual_gradient,
                         const at::Tensor& weight_gradient) {
  const PartTimer timer(Part::elementwise);
  return COPUS_CHOOSE(dy, norm_backward)(dy, input, statistics, weight, residual_gradient, weight_gradient);
}

at::Tensor normalize_heads(const at::Tensor& qkv, const AttentionShape& shape, const at::Tensor& query_weight,
                           const at::Tensor& key_weight, double epsilon) {
  const PartTimer timer(Part::elementwise);
  return COPUS_CHOOSE(qkv, normalize_heads)(qkv, shape, query_weight, key_weight, epsilon);
}

void normalize_heads_backward_(const at::Tensor& gradient, const at::Tensor& qkv, const AttentionShape& shape,
                               const at::Tensor& query_weight, const at::Tensor& key_weight, double epsilon,
                               const at::Tensor& query_weight_gradient, const at::Tensor& key_weight_gradient) {
  const PartTimer timer(Part::elementwise);
  COPUS_CHOOSE(qkv, normalize_heads_backward_)
  (gradient, qkv, shape, query_weight, key_weight, epsilon, query_weight_gradient, key_weight_gradient);
}

at::Tensor projection_squares(const at::Tensor& qkv, const AttentionShape& shape) {
  const PartTimer timer(Part::elementwise);
  return COPUS_CHOOSE_WITHOUT_GPU(qkv, projection_squares)(qkv, shape);
}

at::Tensor normalize_projections(const at::Tensor& qkv, const AttentionShape& shape, const ProjectionNorm& norm,
                                 const at::Tensor& squares) {
  const PartTimer timer(Part::elementwise);
  return COPUS_CHOOSE_WITHOUT_GPU(qkv, normalize_projections)(qkv, shape, norm, squares);
}

at::Tensor projection_products(const at::Tensor& gradient, const at::Tensor& qkv, const AttentionShape& shape,
                               const ProjectionNorm& norm) {
  const PartTimer timer(Part::elementwise);
  return COPUS_CHOOSE_WITHOUT_GPU(qkv, projection_products)(gradient, qkv, shape, norm);
}

void normalize_projections_backward_(const at::Tensor& gradient, const at::Tensor& qkv, const AttentionShape& shape,
                                     const ProjectionNorm& norm, const at::Tensor& squares, const at::Tensor& products,
                                     const at::Tensor& query_weight_gradient, const at::Tensor& key_weight_gradient) {
  const PartTimer timer(Part::elementwise);
  COPUS_CHOOSE_WITHOUT_GPU(qkv, normalize_projections_backward_)
  (gradient, qkv, shape, norm, squares, products, query_weight_gradient, key_weight_gradient);
}

void rotary_(const at::Tensor& qkv, const AttentionShape& shape, const at::Tensor& cosine, const at::Tensor& sine,
             bool backward) {
  const PartTimer timer(Part::elementwise);
  COPUS_CHOOSE(qkv, rotary_)(qkv, shape, cosine, sine, backward);
}

AttentionResult attention(const at::Tensor& qkv, const AttentionShape& shape) {
  const PartTimer timer(Part::attention);
  return choose_attention(qkv, shape, on_cpu::attention, on_cudnn::attention, generic::attention)(qkv, shape);
}

at::Tensor attention_backward(const at::Tensor& output_gradient, const at::Tensor& qkv, const AttentionResult& forward,
                              const AttentionShape& shape) {
  const PartTimer timer(Part::attention);
  const auto kernel = choose_attention(qkv, shape, on_cpu::attention_backward, on_cudnn::attention_backward,
                                       generic::attention_backward);
  return kernel(output_gradient, qkv, forward, shape);
}

at::Tensor activate(const at::Tensor& input, const Activation& activation) {
  const PartTimer timer(Part::elementwise);
  return COPUS_CHOOSE(input, activate)(input, activation);
}

ActivationGradient activate_backward(const at::Tensor& activation_gradient, const at::Tensor& input,
                                     const Activation& activation) {
  const PartTimer timer(Part::elementwise);
  return COPUS_CHOOSE(input, activate_backward)(activation_gradient, input, activation);
}

void add_linear_bias_gradient(const at::Tensor& gradient, const at::Tensor& dy) {
  const PartTimer timer(Part::elementwise);
  COPUS_CHOOSE(dy, add_linear_bias_gradient)(gradient, dy);
}

at::Tensor embedding_part(const at::Tensor& weight, const at::Tensor& tokens, int64_t first_token) {
  const PartTimer timer(Part::elementwise);
  return COPUS_CHOOSE(weight, embedding_part)(weight, tokens, first_token);
}

void add_embedding_gradient(const at::Tensor& gradient, const at::Tensor& dy, const at::Tensor& tokens,
                            int64_t first_token) {
  const PartTimer timer(Part::elementwise);
  COPUS_CHOOSE(dy, add_embedding_gradient)(gradient, dy, tokens, first_token);
}

void cross_entropy_(const at::Tensor& logits, const at::Tensor& targets, double loss_scale, bool gradient,
                    const at::Tensor& loss_sum, double softcap) {
  const PartTimer timer(Part::elementwise);
  COPUS_CHOOSE(logits, cross_entropy_)(logits, targets, loss_scale, gradient, loss_sum, softcap);
}

at::Tensor softmax_statistics(const at::Tensor& logits, const at::Tensor& targets, int64_t first_token,
                              double softcap) {
  const PartTimer timer(Part::elementwise);
  return COPUS_CHOOSE(logits, softmax_statistics)(logits, targets, first_token, softcap);
}

void cross_entropy_part_(const at::Tensor& logits, const at::Tensor& targets, int64_t first_token,
                         const at::Tensor& statistics, double loss_scale, bool gradient, const at::Tensor& loss_sum,
                         double softcap) {
  const PartTimer timer(Part::elementwise);
  COPUS_CHOOSE(logits, cross_entropy_part_)
  (logits, targets, first_token, statistics, loss_scale, gradient, loss_sum, softcap);
}

void adamw_(const AdamWState<at::Tensor>& state, const at::Tensor& gradient, const AdamWStep& step) {
  const PartTimer timer(Part::optimizer);
  COPUS_CHOOSE(state.master, adamw_)(state, gradient, step);
}

void signum_(const at::Tensor& master, const at::Tensor& momentum, const at::Tensor& gradient, const SignumStep& step) {
  const PartTimer timer(Part::optimizer);
  COPUS_CHOOSE(master, signum_)(master, momentum, gradient, step);
}

void muon_(const at::Tensor& master, const at::Tensor& average, const at::Tensor& direction, const at::Tensor& gradient,
           const MuonStep& step) {
  const PartTimer timer(Part::optimizer);
  COPUS_CHOOSE_WITHOUT_GPU(master, muon_)(master, average, direction, gradient, step);
}

at::Tensor weighted_sum(const at::Tensor& first, double first_weight, const at::Tensor& second, double second_weight) {
  return COPUS_CHOOSE_WITHOUT_GPU(first, weighted_sum)(first, first_weight, second, second_weight);
}

at::Tensor map_singular_values(const at::Tensor& matrix, std::span<const QuinticPolynomial> polynomials,
                               at::ScalarType dtype) {
  const PartTimer timer(Part::optimizer);
  return generic::map_singular_values(matrix, polynomials, dtype);
}

#undef COPUS_CHOOSE
#undef COPUS_CHOOSE_WITHOUT_GPU

ExactSum squared_norm(const at::Tensor& flat, int64_t begin, int64_t end) {
  NormSum sum(flat.device());
  sum.add(flat, begin, end);
  return sum.take();
}

NormSum::NormSum(at::Device device) {
  if (has_gpu && device.type() == gpu) words_ = zeros({ExactSum::num_words}, at::kLong, device);
}

void NormSum::add(const at::Tensor& flat, int64_t begin, int64_t end) {
  const PartTimer timer(Part::optimizer);
  if constexpr (has_gpu) {
    const bool takes = runs_fused_on_gpu(flat) && flat.scalar_type() == at::kFloat;
    if (takes) return on_gpu::add_squared_norm(words_, flat, begin, end);
  }
  sum_.add(runs_fused_on_cpu(flat) ? on_cpu::squared_norm(flat, begin, end) : generic::squared_norm(flat, begin, end));
}

ExactSum NormSum::take() {
  ExactSum sum = std::exchange(sum_, {});
  if (words_.defined()) {
    ExactSum on_device;
    copy_to_host(words_, on_device.words().data());
    words_.zero_();
    sum.add(on_device);
  }
  return sum;
}

void round_to(const at::Tensor& from, const at::Tensor& to) {
  const PartTimer timer(Part::optimizer);
  const bool rounds = from.scalar_type() == at::kFloat && to.scalar_type() == at::kBFloat16;
  const bool takes = rounds && runs_fused_on_gpu(from) && runs_fused_on_gpu(to);
  (takes ? fused_on_gpu::round_to : generic::round_to)(from, to);
}

void set_num_threads(int64_t threads) { at::set_num_threads(static_cast<int>(threads)); }

int64_t num_threads() { return at::get_num_threads(); }

}  // namespace copus::kernels
