#include "copus/train/state_transfer.h"

#include <utility>
#include <vector>

#include "copus/base/error.h"
#include "copus/model/kernels.h"

namespace copus {

void copy_from_host(const TensorView& source, const at::Tensor& tensor) {
  COPUS_CHECK(tensor.scalar_type() == at::kFloat && tensor.is_contiguous());
  COPUS_CHECK(tensor.sizes() == at::IntArrayRef(source.shape), source.name, " has shape ", shape_text(source.shape));
  const std::vector<float> elements = to_float(source);
  kernels::copy_from_host(elements.data(), tensor);
}

HostTensor copy_to_host_tensor(const at::Tensor& tensor, std::string name) {
  COPUS_CHECK(tensor.scalar_type() == at::kFloat && tensor.is_contiguous());
  HostTensor host = make_host_tensor(std::move(name), DType::f32, tensor.sizes().vec());
  kernels::copy_to_host(tensor, host.bytes.get());
  return host;
}

void load_weights(ParameterStore& parameters, const std::map<std::string, TensorView, std::less<>>& weights) {
  for (const Parameter& parameter : parameters.parameters()) {
    if (parameter.tied_copy) continue;
    const auto found = weights.find(parameter.info.name);
    COPUS_CHECK(found != weights.end(), "no weight ", parameter.info.name);
    copy_from_host(found->second, parameters.master(parameter));
  }
  parameters.publish_weights();
}

}  // namespace copus
