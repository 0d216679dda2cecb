#include "copus/train/state_hash.h"

#include <algorithm>
#include <bit>
#include <vector>

#include "copus/base/error.h"
#include "copus/base/mix_bits.h"
#include "copus/base/philox.h"
#include "copus/model/kernels.h"
#include "copus/placement/sharding.h"
#include "copus/train/gradient_ranges.h"

namespace copus {

namespace {

// Number of elements of a device's memory that are copied to the host at once.
constexpr int64_t elements_at_once = int64_t{4} << 20;

// Pointer to `values` on the host: to the tensor itself, or to `copy`, which is filled.
const float* on_host(const at::Tensor& values, std::vector<float>& copy) {
  if (values.device().is_cpu()) return static_cast<const float*>(values.data_ptr());
  copy.resize(values.numel());
  kernels::copy_to_host(values, copy.data());
  return copy.data();
}

// Hash of the part of a parameter that this rank counts: the part that it updates alone, or as the first of the
// data-parallel ranks that update it.
uint64_t hash_of_part(const ParameterStore& parameters, const Parameter& parameter, StateKind kind,
                      const at::Tensor& shard) {
  COPUS_CHECK(shard.scalar_type() == at::kFloat);
  const Bucket& bucket = parameters.buckets()[parameter.bucket];
  const int64_t end = std::min(parameter.box.num_elements(), bucket.shard_end - parameter.offset);
  uint64_t hash = 0;
  std::vector<float> copy;
  for (int64_t from = std::max<int64_t>(0, bucket.shard_begin - parameter.offset), to = 0; from < end; from = to) {
    to = std::min(end, from + elements_at_once);
    const float* const first = on_host(shard.narrow(0, parameter.offset + from - bucket.shard_begin, to - from), copy);
    for_stretches(parameter.box, parameter.info.shape, from, to, [&](int64_t position, int64_t index, int64_t count) {
      hash += hash_elements(kind, parameter.info.name, index, {first + position - from, static_cast<size_t>(count)});
    });
  }
  return hash;
}

}  // namespace

uint64_t hash_elements(StateKind kind, const std::string& parameter, int64_t first_index,
                       std::span<const float> values) {
  const uint64_t key = stream_key(static_cast<uint64_t>(kind), parameter);
  uint64_t hash = 0;
  auto index = static_cast<uint64_t>(first_index);
  for (const float value : values) hash += extend_hash(mix_bits(key + index++), std::bit_cast<uint32_t>(value));
  return hash;
}

uint64_t hash_counters(const TrainingState& state) {
  TrainingState lasting = state;
  lasting.elapsed_seconds = 0;
  lasting.configuration.reset();
  lasting.rate_factor.reset();
  lasting.variance_ratio = 1;
  return stream_key(0, to_json(lasting));
}

uint64_t state_hash(const RankModel& model, const TrainingState& state, Communicator& everyone) {
  const ParameterStore& parameters = model.parameters;
  uint64_t hash = everyone.rank() == 0 ? hash_counters(state) : 0;
  for (const Parameter& parameter : parameters.parameters()) {
    if (!counts_here(parameters, parameter) || !is_first_with_its_share(parameters.placement())) continue;
    const int64_t bucket = parameter.bucket;
    hash += hash_of_part(parameters, parameter, StateKind::master, parameters.buckets()[bucket].master) +
            hash_of_part(parameters, parameter, StateKind::exp_avg, model.optimizer.exp_avg()[bucket]) +
            hash_of_part(parameters, parameter, StateKind::exp_avg_sq, model.optimizer.exp_avg_sq()[bucket]);
  }
  auto sum = std::bit_cast<int64_t>(hash);
  everyone.all_reduce(&sum, 1, DataType::int64);
  return std::bit_cast<uint64_t>(sum);
}

}  // namespace copus
