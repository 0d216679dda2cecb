#include "copus/train/state/state_hash.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <iterator>

#include "copus/base/error.h"
#include "copus/base/numbers/mix_bits.h"
#include "copus/base/numbers/philox.h"
#include "copus/model/kernels/kernels.h"
#include "copus/placement/bucket_offsets.h"
#include "copus/train/switch/relayout_messages.h"

namespace copus {

namespace {

// Elements that are copied to the host, or rounded, at once; and elements per task.
constexpr int64_t elements_at_once = int64_t{4} << 20;
constexpr int64_t elements_per_task = 1 << 16;

// Indices of words in the sum.
constexpr int64_t counters_word = 0, counter_copies_word = 1, padding_word = 2, first_of_parameters = 3;

uint64_t key_of(StateKind kind, const std::string& parameter) {
  return stream_key(static_cast<uint64_t>(kind), parameter);
}

// Multiples of the golden ratio are far apart, so an index below 2^31 never acts like another value.
uint64_t hash_values(uint64_t key, int64_t first_index, std::span<const float> values) {
  constexpr uint64_t golden_ratio = 0x9E3779B97F4A7C15ULL;
  uint64_t place = key + static_cast<uint64_t>(first_index);
  uint64_t hash = 0;
  for (const float value : values) hash += mix_bits(place++ + golden_ratio * std::bit_cast<uint32_t>(value));
  return hash;
}

uint64_t hash_of_text(TrainingState state) {
  state.elapsed_seconds = state.paused_seconds = 0;
  return stream_key(0, to_json(state));
}

// Returns the values as fp32 on the host.
at::Tensor on_host(const at::Tensor& values) {
  at::Tensor wide = values;
  if (values.scalar_type() != at::kFloat) {
    COPUS_CHECK(values.scalar_type() == at::kBFloat16, "state of another type");
    wide = kernels::empty({values.numel()}, at::kFloat, values.device());
    wide.copy_(values);
  }
  if (wide.device().is_cpu()) return wide;
  const at::Tensor copy = kernels::empty({wide.numel()}, at::kFloat, at::kCPU);
  kernels::copy_to_host(wide, copy.data_ptr());
  return copy;
}

at::Tensor rounded(const at::Tensor& values, at::ScalarType dtype) {
  const at::Tensor result = kernels::empty({values.numel()}, dtype, values.device());
  kernels::round_to(values, result);
  return result;
}

// The part of a parameter in a buffer of its bucket. Elements are counted within the rank's part.
struct PartInBuffer {
  const LocalParameter& parameter;
  const at::Tensor& buffer;
  int64_t first;  // index of the buffer's first element; negative if something precedes the part

  int64_t begin() const { return std::clamp<int64_t>(first, 0, parameter.box.num_elements()); }
  int64_t end() const { return std::clamp<int64_t>(first + buffer.numel(), 0, parameter.box.num_elements()); }

  // Hashes the elements from .. to, after `prepare` has converted those in the buffer.
  template <class Prepare>
  uint64_t hash(StateKind kind, int64_t from, int64_t to, const Prepare& prepare) const {
    const uint64_t key = key_of(kind, parameter.info.name);
    std::atomic<uint64_t> sum = 0;
    for (int64_t begin = from; begin < to; begin += elements_at_once) {
      const int64_t count = std::min(elements_at_once, to - begin);
      const at::Tensor host = on_host(prepare(buffer.narrow(0, begin - first, count)));
      const auto* const values = static_cast<const float*>(host.data_ptr());
      at::parallel_for(begin, begin + count, elements_per_task, [&](int64_t task, int64_t end_of_task) {
        uint64_t of_task = 0;
        for_stretches(parameter.box, parameter.info.shape, task, end_of_task,
                      [&](int64_t position, int64_t index, int64_t length) {
                        of_task += hash_values(key, index, {values + position - begin, static_cast<size_t>(length)});
                      });
        sum += of_task;
      });
    }
    return sum;
  }
  uint64_t hash(StateKind kind, int64_t from, int64_t to) const {
    return hash(kind, from, to, [](const at::Tensor& values) { return values; });
  }
};

// One rank's part of a bucket.
struct HeldBucket {
  const ParallelStrategy& strategy;
  const BucketOffsets& offsets;
  const BucketState& state;

  bool weights_are_master() const { return state.weight.scalar_type() == state.master.scalar_type(); }
  bool lies_in_weights(StateKind kind) const {
    return kind == StateKind::weights || (kind == StateKind::master && weights_are_master());
  }

  struct Hashes {
    uint64_t updated;  // of the elements that this rank updates (weights: of those derived from them)
    uint64_t all;      // of all elements that it holds, including, with ZeRO-1 and 2, weights that others update
  };
  Hashes hash(const LocalParameter& parameter, int64_t offset, StateKind kind) const {
    const PartInBuffer shard{parameter, lies_in_weights(kind) ? state.master : buffer_of(state, kind),
                             offsets.shard_begin - offset};
    const int64_t from = shard.begin(), to = shard.end();
    const PartInBuffer weights{parameter, state.weight, offsets.kept_weights.begin - offset};
    if (kind == StateKind::weights) {
      const auto round = [&](const at::Tensor& values) { return rounded(values, state.weight.scalar_type()); };
      return {shard.hash(kind, from, to, round), weights.hash(kind, weights.begin(), weights.end())};
    }
    const uint64_t updated = shard.hash(kind, from, to);
    if (!lies_in_weights(kind)) return {updated, updated};
    return {updated, updated + weights.hash(kind, weights.begin(), from) + weights.hash(kind, to, weights.end())};
  }

  // Returns the number of ranks that hold each element of the parameter.
  uint64_t num_copies(const LocalParameter& parameter, StateKind kind) const {
    const bool is_cut = lies_in_weights(kind) ? strategy.cuts_weights() : strategy.cuts_optimizer();
    const int64_t among_data = strategy.data_parallel / (is_cut ? strategy.zero_shards() : 1);
    const int64_t among_stages = parameter.sharding.tied && strategy.pipeline_parallel > 1 ? 2 : 1;
    return static_cast<uint64_t>(among_data * parameter.sharding.replicas * among_stages);
  }

  uint64_t count_nonzero(const Stretch& padding, bool without_weights) const {
    const auto count_in = [&](const at::Tensor& buffer, int64_t first) {
      const int64_t from = std::max<int64_t>(padding.begin - first, 0);
      const int64_t to = std::min<int64_t>(padding.end - first, buffer.numel());
      if (from >= to) return int64_t{0};
      const at::Tensor host = on_host(buffer.narrow(0, from, to - from));
      const auto* const values = static_cast<const float*>(host.data_ptr());
      return std::count_if(values, values + host.numel(), [](float value) { return value != 0; });
    };
    int64_t count = without_weights ? 0 : count_in(state.weight, offsets.kept_weights.begin);
    count += count_in(state.master, offsets.shard_begin);
    for (const at::Tensor& slot : state.slots) count += count_in(slot, offsets.shard_begin);
    return static_cast<uint64_t>(count);
  }
};

// Returns whether this rank's copy of a parameter counts in the first sum. Among data-parallel ranks that update the
// same elements, and among tensor-parallel replicas, only the first counts. Of a tied embedding and head, only the
// embedding counts.
bool is_counted(const LocalParameter& parameter, const Placement& placement) {
  return !parameter.tied_copy && placement.here.tensor % parameter.sharding.replicas == 0 &&
         placement.here.data < placement.strategy.optimizer_shards();
}

}  // namespace

uint64_t hash_elements(StateKind kind, const std::string& parameter, int64_t first_index,
                       std::span<const float> values) {
  return hash_values(key_of(kind, parameter), first_index, values);
}

uint64_t hash_counters(const TrainingState& state) {
  TrainingState lasting = state;
  lasting.configuration = {};
  lasting.rate_factor = 1;
  return hash_of_text(lasting);
}

StateHash::StateHash(const ModelDescription& model, const std::vector<OptimizerSlot>& slots)
    : model_(model), kinds_(state_kinds(slots.size())) {
  for (const OptimizerSlot& slot : slots) slots_.push_back(slot.name);
  for (const ParameterInfo& parameter : list_parameters(model)) {
    places_[parameter.name] = std::ssize(parameters_);
    parameters_.push_back(parameter.name);
  }
  words_.resize(counted(std::ssize(parameters_), StateKind::weights));
}

// Returns the word of a parameter's counted elements.
int64_t StateHash::counted(int64_t parameter, StateKind kind) const {
  return first_of_parameters + parameter * 2 * std::ssize(kinds_) + static_cast<int64_t>(kind);
}

// Returns the word of all copies minus the counted elements.
int64_t StateHash::copies(int64_t parameter, StateKind kind) const {
  return counted(parameter, kind) + std::ssize(kinds_);
}

std::string StateHash::name_of(StateKind kind) const {
  if (kind == StateKind::weights) return "compute weights";
  if (kind == StateKind::master) return "master weights";
  return slots_.at(static_cast<size_t>(kind) - static_cast<size_t>(StateKind::first_slot));
}

void StateHash::add_rank(const Placement& placement, const std::vector<BucketState>& state, bool has_compute_weights) {
  const std::vector<LocalParameter> held = list_local_parameters(model_, placement);
  const std::vector<BucketOffsets> buckets = arrange_buckets(held, placement);
  COPUS_CHECK(state.size() == buckets.size(), "state of ", state.size(), " buckets, not ", buckets.size());
  for (size_t b = 0; b < buckets.size(); ++b) {
    if (buckets[b].gradient_only) continue;
    const HeldBucket bucket{placement.strategy, buckets[b], state[b]};
    const bool is_derived = !bucket.weights_are_master();
    for (const auto& [index, offset] : buckets[b].entries) {
      const LocalParameter& parameter = held[index];
      const bool counts = is_counted(parameter, placement);
      for (const StateKind kind : kinds_) {
        if (kind == StateKind::weights && !(is_derived && has_compute_weights)) continue;
        const auto [updated, all] = bucket.hash(parameter, offset, kind);
        const int64_t place = places_.at(parameter.info.name);
        words_[copies(place, kind)] += all;
        if (!counts) continue;
        words_[copies(place, kind)] -= updated * bucket.num_copies(parameter, kind);
        if (kind != StateKind::weights) words_[counted(place, kind)] += updated;
      }
    }
    for (const Stretch& padding : find_padding(held, buckets[b])) {
      words_[padding_word] += bucket.count_nonzero(padding, is_derived && !has_compute_weights);
    }
  }
}

void StateHash::add_counters(const TrainingState& state, int64_t updates, int64_t rank, int64_t ranks) {
  TrainingState known = state;
  known.optimizer_steps = updates;
  words_[counter_copies_word] += hash_of_text(known);
  if (rank != 0) return;
  words_[counter_copies_word] -= hash_of_text(state) * static_cast<uint64_t>(ranks);
  words_[counters_word] += hash_counters(state);
}

void StateHash::add_up(Communicator& everyone) {
  everyone.all_reduce(words_.data(), std::ssize(words_), DataType::int64);
}

uint64_t StateHash::value() const {
  uint64_t sum = words_[counters_word];
  for (int64_t place = 0; place < std::ssize(parameters_); ++place) {
    for (const StateKind kind : kinds_) sum += words_[counted(place, kind)];
  }
  return sum;
}

std::optional<std::string> StateHash::damage() const {
  if (words_[counter_copies_word] != 0) return "the ranks do not agree on where training stands";
  for (int64_t place = 0; place < std::ssize(parameters_); ++place) {
    for (const StateKind kind : kinds_) {
      if (words_[copies(place, kind)] == 0) continue;
      const std::string what = concat(name_of(kind), " of ", parameters_[place]);
      if (kind == StateKind::weights) return concat(what, " are not everywhere its master weights, rounded");
      return concat("ranks that should hold the same ", what, " do not");
    }
  }
  if (words_[padding_word] != 0) return "what lies between the parameters is not zero";
  return std::nullopt;
}

std::optional<std::string> StateHash::damage_since(const StateHash& before) const {
  if (const auto damage = this->damage()) return damage;
  if (words_[counters_word] != before.words_[counters_word]) return "training does not stand where it stood";
  for (int64_t place = 0; place < std::ssize(parameters_); ++place) {
    for (const StateKind kind : kinds_) {
      if (words_[counted(place, kind)] == before.words_[counted(place, kind)]) continue;
      return concat(name_of(kind), " of ", parameters_[place], " are not what they were");
    }
  }
  return std::nullopt;
}

}  // namespace copus
