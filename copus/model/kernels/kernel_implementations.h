// The implementations of model/kernels/kernels.h, with the same arguments and results, one namespace per
// implementation. kernels.cpp selects among them by tensor.
#pragma once

#include "copus/model/kernels/kernels.h"

namespace copus::kernels {

// The dtype of statistics, main gradients and optimizer state for weights or activations of this dtype.
inline at::ScalarType master_dtype(const at::Tensor& tensor) {
  return tensor.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
}

// Kernels that every implementation has.
#define COPUS_COMMON_KERNELS                                              \
  decltype(kernels::add_norm) add_norm;                                   \
  decltype(kernels::norm_backward) norm_backward;                         \
  decltype(kernels::normalize_heads) normalize_heads;                     \
  decltype(kernels::normalize_heads_backward_) normalize_heads_backward_; \
  decltype(kernels::rotary_) rotary_;                                     \
  decltype(kernels::activate) activate;                                   \
  decltype(kernels::activate_backward) activate_backward;                 \
  decltype(kernels::add_linear_bias_gradient) add_linear_bias_gradient;   \
  decltype(kernels::embedding_part) embedding_part;                       \
  decltype(kernels::add_embedding_gradient) add_embedding_gradient;       \
  decltype(kernels::cross_entropy_) cross_entropy_;                       \
  decltype(kernels::softmax_statistics) softmax_statistics;               \
  decltype(kernels::cross_entropy_part_) cross_entropy_part_;             \
  decltype(kernels::adamw_) adamw_;                                       \
  decltype(kernels::signum_) signum_

// Kernels that GPUs leave to the generic implementation.
#define COPUS_KERNELS_WITHOUT_GPU                                 \
  decltype(kernels::muon_) muon_;                                 \
  decltype(kernels::weighted_sum) weighted_sum;                   \
  decltype(kernels::projection_squares) projection_squares;       \
  decltype(kernels::normalize_projections) normalize_projections; \
  decltype(kernels::projection_products) projection_products;     \
  decltype(kernels::normalize_projections_backward_) normalize_projections_backward_

// Compositions of ATen operators: for any device and dtype, and the reference in tests of the fused kernels.
namespace generic {

COPUS_COMMON_KERNELS;
COPUS_KERNELS_WITHOUT_GPU;
decltype(kernels::attention) attention;
decltype(kernels::attention_backward) attention_backward;
decltype(kernels::map_singular_values) map_singular_values;
decltype(kernels::squared_norm) squared_norm;
decltype(kernels::round_to) round_to;
// Returns the derivative of soft_cap from its result.
at::Tensor soft_cap_slope(const at::Tensor& capped, double softcap);

}  // namespace generic

// Fused kernels of the CPU, for contiguous tensors of float32, float64 and bfloat16.
namespace on_cpu {

COPUS_COMMON_KERNELS;
COPUS_KERNELS_WITHOUT_GPU;
decltype(kernels::attention) attention;
decltype(kernels::attention_backward) attention_backward;
decltype(kernels::squared_norm) squared_norm;

}  // namespace on_cpu

// Fused kernels of a GPU, for contiguous tensors of float32 and bfloat16. They exist in builds for a GPU and, over the
// emulated device, in tests.
namespace on_gpu {

COPUS_COMMON_KERNELS;
// Adds the squared norm of elements begin .. end of a float32 tensor to the words (int64) of an ExactSum on its device.
void add_squared_norm(const at::Tensor& words, const at::Tensor& flat, int64_t begin, int64_t end);
// Rounds from float32 to bfloat16.
decltype(kernels::round_to) round_to;

}  // namespace on_gpu

#undef COPUS_COMMON_KERNELS
#undef COPUS_KERNELS_WITHOUT_GPU

// Attention by cuDNN, in builds with its headers (kernels_cudnn.cpp). In other builds a stand-in accepts no shape.
namespace on_cudnn {

// Returns whether cuDNN may compute attention on this device.
bool is_for(at::Device device);
// Returns whether cuDNN supports this shape on this device, with bitwise repeatable results. The first call for a shape
// prepares its kernels, which takes about 0.1 s.
bool takes_attention(const at::Tensor& qkv, const AttentionShape& shape);
decltype(kernels::attention) attention;
decltype(kernels::attention_backward) attention_backward;

}  // namespace on_cudnn

}  // namespace copus::kernels
