#include "copus/model/memory/parameters.h"

#include <ATen/Parallel.h>

#include <algorithm>

#include "copus/base/error.h"
#include "copus/base/numbers/philox.h"
#include "copus/model/kernels/kernels.h"
#include "copus/model/kernels/part_timer.h"
#include "copus/model/memory/flat_memory.h"
#include "copus/placement/sharding.h"

namespace copus {

namespace {

// Values per task, which takes about a millisecond.
constexpr int64_t values_per_task = 1 << 16;

}  // namespace

ParameterStore::ParameterStore(const ModelDescription& model, at::ScalarType compute_dtype, at::Device device)
    : ParameterStore(model, compute_dtype, device, whole_model(model)) {}

ParameterStore::ParameterStore(const ModelDescription& model, at::ScalarType compute_dtype, at::Device device,
                               const Placement& placement)
    : ParameterStore(model, compute_dtype, placement,
                     allocate_zeros(model, placement, compute_dtype, /*num_slots=*/0, *allocator_memory(device))) {}

ParameterStore::ParameterStore(const ModelDescription& model, at::ScalarType compute_dtype, const Placement& placement,
                               const std::vector<BucketState>& state)
    : model_(model), placement_(placement), compute_dtype_(compute_dtype), device_(state.at(0).gradient.device()) {
  std::vector<LocalParameter> held = list_local_parameters(model, placement);
  const std::vector<BucketOffsets> all_offsets = arrange_buckets(held, placement);
  COPUS_CHECK(state.size() == all_offsets.size(), "state of ", state.size(), " buckets, not ", all_offsets.size());
  for (LocalParameter& local : held) {
    if (!local.tied_copy) index_[local.info.name] = std::ssize(parameters_);
    parameters_.push_back({.info = std::move(local.info),
                           .sharding = local.sharding,
                           .box = std::move(local.box),
                           .chunk = local.chunk,
                           .tied_copy = local.tied_copy,
                           .weight = {},
                           .gradient = {},
                           .bucket = 0,
                           .offset = 0});
  }
  for (size_t b = 0; b < all_offsets.size(); ++b) {
    const BucketOffsets& offsets = all_offsets[b];
    Bucket& bucket = buckets_.emplace_back();
    bucket.chunk = offsets.chunk;
    for (const BucketOffsets::Entry& entry : offsets.entries) {
      bucket.parameters.push_back(entry.parameter);
      Parameter& parameter = parameters_[entry.parameter];
      parameter.bucket = static_cast<int64_t>(b);
      parameter.offset = entry.offset;
    }
    place(bucket, offsets, state[b]);
  }
}

void ParameterStore::place(Bucket& bucket, const BucketOffsets& offsets, const BucketState& state) {
  COPUS_CHECK(
      state.gradient.numel() == offsets.kept_gradients.size() && state.weight.defined() != offsets.gradient_only,
      "the state of another bucket");
  const auto whole = [&](const at::Tensor& kept, bool is_cut) {
    return is_cut ? flat_without_memory(offsets.size, kept.scalar_type(), device_) : kept;
  };
  const auto shard = [&](const at::Tensor& kept, const Stretch& of) {
    return kept.narrow(0, offsets.shard_begin - of.begin, offsets.shard_end - offsets.shard_begin);
  };
  bucket.kept_gradient = state.gradient;
  bucket.gradient = whole(state.gradient, placement_.strategy.cuts_gradients());
  bucket.shard_begin = offsets.shard_begin;
  bucket.shard_end = offsets.shard_end;
  if (!offsets.gradient_only) {
    bucket.kept_weight = state.weight;
    bucket.weight = whole(state.weight, placement_.strategy.cuts_weights());
    bucket.weight_shard = shard(bucket.kept_weight, offsets.kept_weights);
    bucket.gradient_shard = shard(bucket.kept_gradient, offsets.kept_gradients);
    bucket.master = state.master;
  }
  for (const int64_t index : bucket.parameters) {
    Parameter& parameter = parameters_[index];
    const auto view = [&](const at::Tensor& flat) {
      return flat.narrow(0, parameter.offset, parameter.box.num_elements()).view(parameter.box.shape);
    };
    parameter.weight = offsets.gradient_only ? find(parameter.info.name).weight : view(bucket.weight);
    parameter.gradient = view(bucket.gradient);
  }
}

const Parameter& ParameterStore::find(const std::string& name) const {
  const auto found = index_.find(name);
  COPUS_CHECK(found != index_.end(), "no parameter ", name);
  return parameters_[found->second];
}

const Parameter* ParameterStore::find_tied_copy() const {
  const auto found =
      std::find_if(parameters_.begin(), parameters_.end(), [](const Parameter& one) { return one.tied_copy; });
  return found == parameters_.end() ? nullptr : &*found;
}

at::Tensor ParameterStore::master(const Parameter& parameter) const {
  const Bucket& bucket = buckets_[parameter.bucket];
  const int64_t count = parameter.box.num_elements();
  COPUS_CHECK(bucket.shard_begin <= parameter.offset && parameter.offset + count <= bucket.shard_end,
              "this rank does not update all of ", parameter.info.name);
  return bucket.master.narrow(0, parameter.offset - bucket.shard_begin, count).view(parameter.box.shape);
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
  const Bucket& bucket = buckets_[first.bucket];
  return {bucket.weight.narrow(0, first.offset, end - first.offset).view(shape),
          bucket.gradient.narrow(0, first.offset, end - first.offset).view(shape)};
}

void ParameterStore::initialize(uint64_t seed) {
  for (const Parameter& parameter : parameters_) {
    const Bucket& bucket = buckets_[parameter.bucket];
    const int64_t from = std::max<int64_t>(0, bucket.shard_begin - parameter.offset);
    const int64_t to = std::min(parameter.box.num_elements(), bucket.shard_end - parameter.offset);
    if (from >= to) continue;
    const at::Tensor host = kernels::empty({to - from}, at::kFloat, at::kCPU);
    float* values = static_cast<float*>(host.data_ptr());
    if (parameter.info.kind == ParameterKind::embedding || parameter.info.kind == ParameterKind::linear) {
      const uint64_t key = stream_key(seed, parameter.info.name);
      const double deviation = initial_deviation(model_, parameter.info);
      for_stretches(parameter.box, parameter.info.shape, from, to, [&](int64_t position, int64_t index, int64_t count) {
        at::parallel_for(0, count, values_per_task, [&](int64_t begin, int64_t end) {
          fill_normal(key, static_cast<uint64_t>(index + begin), static_cast<uint64_t>(end - begin), deviation,
                      values + position - from + begin);
        });
      });
    } else {
      const bool is_norm = parameter.info.kind == ParameterKind::norm;
      std::fill_n(values, to - from, is_norm ? static_cast<float>(initial_norm_weight(model_)) : 0.0F);
    }
    bucket.master.narrow(0, parameter.offset + from - bucket.shard_begin, to - from).copy_(host);
  }
  publish_weights();
}

void ParameterStore::publish_weights() {
  for (const Bucket& bucket : buckets_) {
    if (!bucket.master.defined() || master_dtype() == compute_dtype_) continue;
    kernels::round_to(bucket.master, bucket.weight_shard);
  }
}

void ParameterStore::zero_gradients() {
  const PartTimer timer(Part::optimizer);
  if (placement_.strategy.cuts_gradients()) return;
  for (const Bucket& bucket : buckets_) bucket.gradient.zero_();
}

}  // namespace copus
