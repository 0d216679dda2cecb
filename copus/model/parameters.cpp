#include "copus/model/parameters.h"

#include <algorithm>
#include <array>
#include <map>
#include <string_view>

#include "copus/base/error.h"
#include "copus/base/philox.h"
#include "copus/model/kernels.h"
#include "copus/model/part_timer.h"

namespace copus {
namespace {

// Where a parameter lies in its bucket: first by this rank, then in canonical order. Members of a joined group have
// equal kinds, so that sorting by rank puts them back to back.
constexpr std::array<std::array<std::string_view, 3>, 3> joined_groups = {{
    {"q_proj.weight", "k_proj.weight", "v_proj.weight"},
    {"q_proj.bias", "k_proj.bias", "v_proj.bias"},
    {"gate_proj.weight", "up_proj.weight", ""},
}};

// The joined group that the parameter belongs to, or -1.
int64_t joined_group(const std::string& name) {
  for (size_t group = 0; group < joined_groups.size(); ++group) {
    for (const std::string_view member : joined_groups[group]) {
      if (!member.empty() && name.ends_with(member)) return static_cast<int64_t>(group);
    }
  }
  return -1;
}

int64_t align(int64_t elements) {
  return (elements + ParameterStore::alignment - 1) / ParameterStore::alignment * ParameterStore::alignment;
}

// The bucket of a parameter: embedding, each layer, then final norm and head.
int64_t bucket_index(const ParameterInfo& info, int64_t num_layers) {
  if (info.layer >= 0) return info.layer + 1;
  return info.kind == ParameterKind::embedding ? 0 : num_layers + 1;
}

}  // namespace

ParameterStore::ParameterStore(const ModelDescription& model, at::ScalarType compute_dtype, at::Device device)
    : model_(model), compute_dtype_(compute_dtype), device_(device) {
  const at::ScalarType master_dtype = compute_dtype == at::kDouble ? at::kDouble : at::kFloat;
  buckets_.resize(static_cast<size_t>(model.num_layers + 2));
  for (ParameterInfo& info : list_parameters(model)) {
    const int64_t index = static_cast<int64_t>(parameters_.size());
    const int64_t bucket = bucket_index(info, model.num_layers);
    index_[info.name] = index;
    buckets_[static_cast<size_t>(bucket)].parameters.push_back(index);
    parameters_.push_back(
        {.info = std::move(info), .weight = {}, .master = {}, .gradient = {}, .bucket = bucket, .offset = 0});
  }
  for (Bucket& bucket : buckets_) {
    // Members of a joined group move up behind the group's first member; all else keeps its canonical order.
    std::map<int64_t, int64_t> first_of_group;
    const auto rank = [&](int64_t index) {
      const int64_t group = joined_group(parameters_[static_cast<size_t>(index)].info.name);
      return group < 0 ? index : first_of_group.try_emplace(group, index).first->second;
    };
    for (const int64_t index : bucket.parameters) rank(index);
    std::stable_sort(bucket.parameters.begin(), bucket.parameters.end(),
                     [&](int64_t a, int64_t b) { return rank(a) < rank(b); });
    int64_t size = 0, previous_group = -1;
    for (const int64_t index : bucket.parameters) {
      Parameter& parameter = parameters_[static_cast<size_t>(index)];
      const int64_t group = joined_group(parameter.info.name);
      parameter.offset = group >= 0 && group == previous_group ? size : align(size);
      size = parameter.offset + parameter.info.num_elements();
      previous_group = group;
    }
    size = align(size);
    bucket.master = kernels::zeros({size}, master_dtype, device);
    bucket.gradient = kernels::zeros({size}, master_dtype, device);
    bucket.weight = compute_dtype == master_dtype ? bucket.master : kernels::zeros({size}, compute_dtype, device);
    for (const int64_t index : bucket.parameters) {
      Parameter& parameter = parameters_[static_cast<size_t>(index)];
      const auto view = [&](const at::Tensor& flat) {
        return flat.narrow(0, parameter.offset, parameter.info.num_elements()).view(parameter.info.shape);
      };
      parameter.weight = view(bucket.weight);
      parameter.master = view(bucket.master);
      parameter.gradient = view(bucket.gradient);
    }
  }
}

const Parameter& ParameterStore::find(const std::string& name) const {
  const auto found = index_.find(name);
  COPUS_CHECK(found != index_.end(), "no parameter ", name);
  return parameters_[static_cast<size_t>(found->second)];
}

JoinedParameters ParameterStore::join(const std::vector<std::string>& names) const {
  const Parameter& first = find(names.front());
  std::vector<int64_t> shape = first.info.shape;
  int64_t end = first.offset + first.info.num_elements();
  for (size_t i = 1; i < names.size(); ++i) {
    const Parameter& next = find(names[i]);
    COPUS_CHECK(next.bucket == first.bucket && next.offset == end, names[i], " does not lie behind ", names[i - 1]);
    shape[0] += next.info.shape[0];
    end += next.info.num_elements();
  }
  const Bucket& bucket = buckets_[static_cast<size_t>(first.bucket)];
  return {bucket.weight.narrow(0, first.offset, end - first.offset).view(shape),
          bucket.gradient.narrow(0, first.offset, end - first.offset).view(shape)};
}

void ParameterStore::initialize(uint64_t seed) {
  for (const Parameter& parameter : parameters_) {
    const int64_t count = parameter.info.num_elements();
    const at::Tensor host = kernels::empty(parameter.info.shape, at::kFloat, at::kCPU);
    float* values = static_cast<float*>(host.data_ptr());
    if (parameter.info.kind == ParameterKind::embedding || parameter.info.kind == ParameterKind::linear) {
      fill_normal(stream_key(seed, parameter.info.name), 0, count, model_.initializer_range, values);
    } else {
      std::fill_n(values, count, parameter.info.kind == ParameterKind::norm ? 1.0F : 0.0F);
    }
    parameter.master.copy_(host);
  }
  publish_weights();
}

void ParameterStore::publish_weights() {
  for (const Bucket& bucket : buckets_) {
    if (!bucket.weight.is_same(bucket.master)) kernels::round_to(bucket.master, bucket.weight);
  }
}

void ParameterStore::zero_gradients() {
  const PartTimer timer(Part::optimizer);
  for (const Bucket& bucket : buckets_) bucket.gradient.zero_();
}

}  // namespace copus
