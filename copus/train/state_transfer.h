// Moves tensors between the device and the host memory that checkpoints and model files are written from and read to.
#pragma once

#include <ATen/core/Tensor.h>

#include <map>
#include <string>

#include "copus/checkpoint/checkpoint.h"
#include "copus/model/parameters.h"

namespace copus {

// Fills `tensor` (fp32, contiguous) with the elements of `source`, which has its shape and a floating-point type.
void copy_from_host(const TensorView& source, const at::Tensor& tensor);

// A copy of `tensor` (fp32, contiguous) in host memory under the given name.
HostTensor copy_to_host_tensor(const at::Tensor& tensor, std::string name);

// Fills the master weights from a model file or checkpoint, which has exactly the store's parameters, and publishes
// them.
void load_weights(ParameterStore& parameters, const std::map<std::string, TensorView, std::less<>>& weights);

}  // namespace copus
