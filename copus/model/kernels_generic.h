// The kernels of model/kernels.h as compositions of ATen operators. They serve any device and dtype, and are the
// reference that the fused kernels are tested against. Arguments and results as there.
#pragma once

#include "copus/model/kernels.h"

namespace copus::kernels::generic {

NormResult add_rms_norm(const at::Tensor& residual, const at::Tensor& delta, const at::Tensor& weight, double epsilon);
at::Tensor rms_norm_backward(const at::Tensor& dy, const at::Tensor& input, const at::Tensor& rstd,
                             const at::Tensor& weight, const at::Tensor& residual_gradient,
                             const at::Tensor& weight_gradient);
void rotary_(const at::Tensor& qkv, const AttentionShape& shape, const at::Tensor& cosine, const at::Tensor& sine,
             bool backward);
AttentionResult attention(const at::Tensor& qkv, const AttentionShape& shape);
at::Tensor attention_backward(const at::Tensor& output_gradient, const at::Tensor& qkv, const AttentionResult& forward,
                              const AttentionShape& shape);
at::Tensor swiglu(const at::Tensor& gate_up);
SwigluGradient swiglu_backward(const at::Tensor& activation_gradient, const at::Tensor& gate_up);
void add_linear_bias_gradient(const at::Tensor& gradient, const at::Tensor& dy);
at::Tensor embedding_part(const at::Tensor& weight, const at::Tensor& tokens, int64_t first_token);
void add_embedding_gradient(const at::Tensor& gradient, const at::Tensor& dy, const at::Tensor& tokens,
                            int64_t first_token);
void cross_entropy_(const at::Tensor& logits, const at::Tensor& targets, double loss_scale, bool gradient,
                    const at::Tensor& loss_sum);
at::Tensor softmax_statistics(const at::Tensor& logits, const at::Tensor& targets, int64_t first_token);
void cross_entropy_part_(const at::Tensor& logits, const at::Tensor& targets, int64_t first_token,
                         const at::Tensor& statistics, double loss_scale, bool gradient, const at::Tensor& loss_sum);
void adamw_(const at::Tensor& master, const at::Tensor& gradient, const at::Tensor& exp_avg,
            const at::Tensor& exp_avg_sq, const AdamWStep& step);
ExactSum squared_norm(const at::Tensor& flat, int64_t begin, int64_t end);
void round_to(const at::Tensor& from, const at::Tensor& to);

}  // namespace copus::kernels::generic
