#include "copus/train/state/state_transfer.h"

#include <algorithm>
#include <span>

#include "copus/base/error.h"
#include "copus/model/kernels/kernels.h"
#include "copus/placement/sharding.h"

namespace copus {

std::vector<at::Tensor> master_weights(const ParameterStore& parameters) {
  std::vector<at::Tensor> masters;
  for (const Bucket& bucket : parameters.buckets()) masters.push_back(bucket.master);
  return masters;
}

void load_state(const ParameterStore& parameters, const std::vector<at::Tensor>& state,
                const std::function<const TensorView&(const std::string& name)>& find) {
  std::vector<float> elements;
  for (const Parameter& parameter : parameters.parameters()) {
    const Bucket& bucket = parameters.buckets()[parameter.bucket];
    const at::Tensor& shard = state[parameter.bucket];
    const int64_t from = std::max<int64_t>(0, bucket.shard_begin - parameter.offset);
    const int64_t to = std::min(parameter.box.num_elements(), bucket.shard_end - parameter.offset);
    if (!shard.defined() || from >= to) continue;
    COPUS_CHECK(shard.scalar_type() == at::kFloat);
    const TensorView& whole = find(parameter.info.name);
    COPUS_CHECK(whole.shape == parameter.info.shape, whole.name, " has shape ", shape_text(whole.shape));
    elements.resize(to - from);
    TensorView stretch{whole.name, whole.dtype, {0}, {}};
    const int64_t width = size_of(whole.dtype);
    for_stretches(parameter.box, parameter.info.shape, from, to, [&](int64_t position, int64_t index, int64_t count) {
      stretch.shape = {count};
      stretch.bytes = whole.bytes.subspan(index * width, count * width);
      to_float(stretch, std::span(elements).subspan(position - from, count));
    });
    kernels::copy_from_host(elements.data(), shard.narrow(0, parameter.offset + from - bucket.shard_begin, to - from));
  }
}

void load_weights(ParameterStore& parameters, const std::map<std::string, TensorView, std::less<>>& weights) {
  load_state(parameters, master_weights(parameters), [&](const std::string& name) -> const TensorView& {
    const auto found = weights.find(name);
    COPUS_CHECK(found != weights.end(), "no weight ", name);
    return found->second;
  });
  parameters.publish_weights();
}

}  // namespace copus
