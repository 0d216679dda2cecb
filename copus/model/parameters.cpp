#include "copus/model/parameters.h"

#include <algorithm>
#include <array>
#include <map>
#include <numeric>
#include <string_view>

#include "copus/base/error.h"
#include "copus/base/philox.h"
#include "copus/layout/stretches.h"
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

// Parameters of a chunk with equal keys share a bucket.
int64_t bucket_key(const LocalParameter& parameter) {
  if (parameter.tied_copy) return -3;
  if (parameter.info.layer >= 0) return parameter.info.layer;
  return parameter.info.kind == ParameterKind::embedding ? -1 : -2;
}

}  // namespace

ParameterStore::ParameterStore(const ModelDescription& model, at::ScalarType compute_dtype, at::Device device)
    : ParameterStore(model, compute_dtype, device, whole_model(model)) {}

ParameterStore::ParameterStore(const ModelDescription& model, at::ScalarType compute_dtype, at::Device device,
                               const Placement& placement)
    : model_(model), placement_(placement), compute_dtype_(compute_dtype), device_(device) {
  int64_t last_chunk = -1, last_key = 0;
  for (LocalParameter& local : list_local_parameters(model, placement)) {
    const int64_t index = static_cast<int64_t>(parameters_.size()), key = bucket_key(local);
    if (local.chunk != last_chunk || key != last_key) {
      buckets_.push_back({.parameters = {}, .chunk = local.chunk, .weight = {}, .gradient = {}, .master = {}});
    }
    last_chunk = local.chunk;
    last_key = key;
    buckets_.back().parameters.push_back(index);
    if (!local.tied_copy) index_[local.info.name] = index;
    parameters_.push_back({.info = std::move(local.info),
                           .sharding = local.sharding,
                           .box = std::move(local.box),
                           .chunk = local.chunk,
                           .tied_copy = local.tied_copy,
                           .weight = {},
                           .gradient = {},
                           .bucket = static_cast<int64_t>(buckets_.size()) - 1,
                           .offset = 0});
  }
  for (Bucket& bucket : buckets_) {
    const int64_t size = arrange(bucket);
    allocate(bucket, size);
  }
}

int64_t ParameterStore::arrange(Bucket& bucket) {
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
    size = parameter.offset + parameter.box.num_elements();
    previous_group = group;
  }
  return align(size);
}

void ParameterStore::allocate(Bucket& bucket, int64_t size) {
  bucket.gradient = kernels::zeros({size}, master_dtype(), device_);
  const Parameter& first = parameters_[static_cast<size_t>(bucket.parameters.front())];
  const bool shares_weight = first.tied_copy && index_.contains(first.info.name);
  if (!shares_weight) {
    bucket.weight = kernels::zeros({size}, compute_dtype_, device_);
    bucket.shard_end = size;
    if (placement_.strategy.zero_stage == 1) {
      const std::vector<int64_t> sizes = shard_sizes(size, placement_.strategy.data_parallel);
      const auto mine = sizes.begin() + placement_.here.data;
      bucket.shard_begin = std::accumulate(sizes.begin(), mine, int64_t{0});
      bucket.shard_end = bucket.shard_begin + *mine;
    }
    const int64_t shard_size = bucket.shard_end - bucket.shard_begin;
    bucket.master = compute_dtype_ == master_dtype() ? bucket.weight.narrow(0, bucket.shard_begin, shard_size)
                                                     : kernels::zeros({shard_size}, master_dtype(), device_);
  }
  for (const int64_t index : bucket.parameters) {
    Parameter& parameter = parameters_[static_cast<size_t>(index)];
    const auto view = [&](const at::Tensor& flat) {
      return flat.narrow(0, parameter.offset, parameter.box.num_elements()).view(parameter.box.shape);
    };
    parameter.weight = shares_weight ? find(parameter.info.name).weight : view(bucket.weight);
    parameter.gradient = view(bucket.gradient);
  }
}

const Parameter& ParameterStore::find(const std::string& name) const {
  const auto found = index_.find(name);
  COPUS_CHECK(found != index_.end(), "no parameter ", name);
  return parameters_[static_cast<size_t>(found->second)];
}

const Parameter* ParameterStore::find_tied_copy() const {
  const auto found =
      std::find_if(parameters_.begin(), parameters_.end(), [](const Parameter& one) { return one.tied_copy; });
  return found == parameters_.end() ? nullptr : &*found;
}

at::Tensor ParameterStore::master(const Parameter& parameter) const {
  const Bucket& bucket = buckets_[static_cast<size_t>(parameter.bucket)];
  const int64_t count = parameter.box.num_elements();
  COPUS_CHECK(bucket.shard_begin <= parameter.offset && parameter.offset + count <= bucket.shard_end,
              "this rank does not update all of ", parameter.info.name);
  return bucket.master.narrow(0, parameter.offset - bucket.shard_begin, count).view(parameter.box.shape);
}

std::vector<int64_t> ParameterStore::shard_sizes(int64_t bucket_size, int64_t data_parallel) {
  COPUS_CHECK(bucket_size % alignment == 0 && data_parallel > 0);
  const int64_t units = bucket_size / alignment;
  std::vector<int64_t> sizes;
  for (int64_t rank = 0; rank < data_parallel; ++rank) {
    sizes.push_back((units * (rank + 1) / data_parallel - units * rank / data_parallel) * alignment);
  }
  return sizes;
}

JoinedParameters ParameterStore::join(const std::vector<std::string>& names) const {
  const Parameter& first = find(names.front());
  std::vector<int64_t> shape = first.box.shape;
  int64_t end = first.offset + first.box.num_elements();
  for (size_t i = 1; i < names.size(); ++i) {
    const Parameter& next = find(names[i]);
    COPUS_CHECK(next.bucket == first.bucket && next.offset == end, names[i], " does not lie behind ", names[i - 1]);
    shape[0] += next.box.shape[0];
    end += next.box.num_elements();
  }
  const Bucket& bucket = buckets_[static_cast<size_t>(first.bucket)];
  return {bucket.weight.narrow(0, first.offset, end - first.offset).view(shape),
          bucket.gradient.narrow(0, first.offset, end - first.offset).view(shape)};
}

void ParameterStore::initialize(uint64_t seed) {
  for (const Parameter& parameter : parameters_) {
    const Bucket& bucket = buckets_[static_cast<size_t>(parameter.bucket)];
    const int64_t from = std::max<int64_t>(0, bucket.shard_begin - parameter.offset);
    const int64_t to = std::min(parameter.box.num_elements(), bucket.shard_end - parameter.offset);
    if (from >= to) continue;
    const at::Tensor host = kernels::empty({to - from}, at::kFloat, at::kCPU);
    float* values = static_cast<float*>(host.data_ptr());
    if (parameter.info.kind == ParameterKind::embedding || parameter.info.kind == ParameterKind::linear) {
      const uint64_t key = stream_key(seed, parameter.info.name);
      for_stretches(parameter.box, parameter.info.shape, from, to, [&](int64_t position, int64_t index, int64_t count) {
        fill_normal(key, index, count, model_.initializer_range, values + position - from);
      });
    } else {
      std::fill_n(values, to - from, parameter.info.kind == ParameterKind::norm ? 1.0F : 0.0F);
    }
    bucket.master.narrow(0, parameter.offset + from - bucket.shard_begin, to - from).copy_(host);
  }
  publish_weights();
}

void ParameterStore::publish_weights() {
  for (const Bucket& bucket : buckets_) {
    if (!bucket.master.defined() || master_dtype() == compute_dtype_) continue;
    kernels::round_to(bucket.master,
                      bucket.weight.narrow(0, bucket.shard_begin, bucket.shard_end - bucket.shard_begin));
  }
}

void ParameterStore::zero_gradients() {
  const PartTimer timer(Part::optimizer);
  for (const Bucket& bucket : buckets_) bucket.gradient.zero_();
}

}  // namespace copus
