// Replaces kernels_cudnn.cpp in builds without cuDNN's headers.
#include "copus/base/error.h"
#include "copus/model/kernels/kernel_implementations.h"

namespace copus::kernels::on_cudnn {

bool is_for(at::Device /*device*/) { return false; }

bool takes_attention(const at::Tensor& /*qkv*/, const AttentionShape& /*shape*/) { return false; }

AttentionResult attention(const at::Tensor& /*qkv*/, const AttentionShape& /*shape*/) {
  COPUS_CHECK(false, "this build has no cuDNN");
}

at::Tensor attention_backward(const at::Tensor& /*output_gradient*/, const at::Tensor& /*qkv*/,
                              const AttentionResult& /*forward*/, const AttentionShape& /*shape*/) {
  COPUS_CHECK(false, "this build has no cuDNN");
}

}  // namespace copus::kernels::on_cudnn
