#include "copus/train/state_transfer.h"

#include <algorithm>
#include <map>
#include <utility>

#include "copus/base/error.h"
#include "copus/model/kernels.h"
#include "copus/placement/sharding.h"

namespace copus {

namespace {

// Tells whether a rank hands in its part of the parameter. Of the ranks that hold the same part, one does.
bool hands_in(const Sharding& sharding, bool tied_copy, const MeshCoordinates& rank) {
  return !tied_copy && rank.data == 0 && rank.tensor % sharding.replicas == 0;
}

// Copies all elements of a bucket to host memory; with ZeRO they are gathered from the ranks that share it.
std::vector<float> whole_bucket(const Bucket& bucket, const at::Tensor& shard, bool is_cut, Communicator& shards) {
  COPUS_CHECK(shard.scalar_type() == at::kFloat);
  std::vector<float> elements(bucket.size());
  kernels::copy_to_host(shard, elements.data() + bucket.shard_begin);
  if (is_cut) {
    shards.all_gather(elements.data() + bucket.shard_begin, elements.data(), shard_sizes(bucket.size(), shards.size()),
                      DataType::float32);
  }
  return elements;
}

// World rank 0's tensors while they are put together.
class Assembly {
 public:
  Assembly(const ModelDescription& model, const std::string& prefix) {
    for (const ParameterInfo& info : list_parameters(model)) {
      index_[info.name] = tensors_.size();
      tensors_.push_back(make_host_tensor(prefix + info.name, DType::f32, info.shape));
    }
  }

  void put(const ParameterInfo& info, const Box& box, const float* elements) {
    auto* whole = reinterpret_cast<float*>(tensors_[index_.at(info.name)].bytes.get());
    for_stretches(box, info.shape, 0, box.num_elements(), [&](int64_t position, int64_t index, int64_t count) {
      std::copy_n(elements + position, count, whole + index);
    });
  }

  std::vector<HostTensor> take() { return std::move(tensors_); }

 private:
  std::vector<HostTensor> tensors_;
  std::map<std::string, size_t> index_;
};

// Hands in the state of the layout's first data-parallel rank. Rank 0's part goes straight into the assembly; other
// ranks send theirs, in the order of their lists of parameters.
void hand_in(const ParameterStore& parameters, RankGroups& groups, const std::vector<at::Tensor>& state,
             Assembly* assembly) {
  for (size_t b = 0; b < parameters.buckets().size(); ++b) {
    if (!state[b].defined()) continue;
    const Bucket& bucket = parameters.buckets()[b];
    const bool is_cut = parameters.placement().strategy.cuts_optimizer();
    const std::vector<float> elements = whole_bucket(bucket, state[b], is_cut, groups.shards());
    std::vector<int64_t> in_order = bucket.parameters;
    std::sort(in_order.begin(), in_order.end());
    for (const int64_t index : in_order) {
      const Parameter& parameter = parameters.parameters()[index];
      if (!hands_in(parameter.sharding, parameter.tied_copy, groups.here())) continue;
      const float* const part = elements.data() + parameter.offset;
      if (assembly != nullptr) {
        assembly->put(parameter.info, parameter.box, part);
      } else {
        groups.everyone().send(part, parameter.box.num_elements(), DataType::float32, 0);
      }
    }
  }
}

void receive_from(int64_t rank, const ParameterStore& parameters, RankGroups& groups, Assembly& assembly) {
  Placement there = parameters.placement();
  there.here = groups.mesh().coordinates(rank);
  std::vector<float> elements;
  for (const LocalParameter& parameter : list_local_parameters(parameters.model(), there)) {
    if (!hands_in(parameter.sharding, parameter.tied_copy, there.here)) continue;
    elements.resize(parameter.box.num_elements());
    groups.everyone().receive(elements.data(), parameter.box.num_elements(), DataType::float32, rank);
    assembly.put(parameter.info, parameter.box, elements.data());
  }
}

}  // namespace

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

std::vector<HostTensor> collect_state(const ParameterStore& parameters, RankGroups& groups,
                                      const std::vector<at::Tensor>& state, const std::string& prefix) {
  if (groups.world().rank() != 0) {
    hand_in(parameters, groups, state, nullptr);
    return {};
  }
  Assembly assembly(parameters.model(), prefix);
  hand_in(parameters, groups, state, &assembly);
  for (int64_t rank = 1; rank < groups.world().size(); ++rank) receive_from(rank, parameters, groups, assembly);
  return assembly.take();
}

}  // namespace copus
