// For tests: the state of one rank that moves through layouts without training, and its expected contents.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "copus/base/numbers/philox.h"
#include "copus/model/kernels/kernels.h"
#include "copus/model/kernels/precision.h"
#include "copus/placement/sharding.h"
#include "copus/train/state/state_hash.h"
#include "copus/train/step/rank_model.h"
#include "copus/train/switch/relayout.h"
#include "copus/train/testing/test_layouts.h"

namespace copus {

// The configuration of a tiny model with six layers.
inline RunConfig tiny_run() {
  RunConfig config = layouts::small_run("");
  config.model.hidden_size = 16;
  config.model.intermediate_size = 40;
  config.model.num_layers = 6;
  config.model.head_dim = 4;
  config.train.sequence_length = 8;
  config.train.global_batch = 24;
  config.train.micro_batch = 1;
  return config;
}

// Returns whole tensors of random numbers for each kind of state.
class WholeState {
 public:
  explicit WholeState(const ModelDescription& model) {
    for (const StateKind kind : {StateKind::master, slot_kind(0), slot_kind(1)}) {
      for (const ParameterInfo& parameter : list_parameters(model)) {
        std::vector<float>& values = values_[{kind, parameter.name}];
        values.resize(static_cast<size_t>(parameter.num_elements()));
        fill_normal(stream_key(static_cast<uint64_t>(kind), parameter.name), 0, values.size(), 1, values.data());
        hash_ += hash_elements(kind, parameter.name, 0, values);
      }
    }
  }

  const float* of(StateKind kind, const std::string& parameter) const {
    return values_.at({kind == StateKind::weights ? StateKind::master : kind, parameter}).data();
  }
  uint64_t hash() const { return hash_; }

 private:
  std::map<std::pair<StateKind, std::string>, std::vector<float>> values_;
  uint64_t hash_ = 0;
};

// One rank's state, with its mover.
class MovingState {
 public:
  MovingState(const RunConfig& config, const ParallelStrategy& strategy, World& world, bool shares_memory)
      : config_(config),
        world_(world),
        recorder_(world),
        mover_(world, test_device(), shares_memory, ranks_as_processes(world)),
        strategy_(strategy),
        model_(std::make_unique<RankModel>(
            config, strategy, world, recorder_,
            allocate_zeros(config.model, place(config.model, strategy, config.train.sequence_length, world.rank()),
                           compute_dtype(config.execution.precision), optimizer_slots(config.optimizer.kind).size(),
                           mover_.memory()))) {
    EXPECT_EQ(mover_.has_arena(), shares_memory && test_device().is_cpu());
    mover_.settle(model_->state(), ranks_as_processes(world), -1);
  }

  RankModel& model() { return *model_; }

  // Returns the hash of all ranks' state, with `counters` as numbers of updates. Every rank calls it.
  StateHash hash(const TrainingState& counters) const { return hash(counters, counters.optimizer_steps); }
  StateHash hash(const TrainingState& counters, int64_t updates) const {
    StateHash hash(config_.model, optimizer_slots(config_.optimizer.kind));
    hash.add_rank(model_->parameters.placement(), model_->state(), true);
    hash.add_counters(counters, updates, world_.rank(), world_.size());
    hash.add_up(world_.everyone());
    return hash;
  }

  void fill(const WholeState& whole) {
    for_stretches_of_state(
        true, [&](StateKind kind, const Parameter& parameter, float* values, int64_t index, int64_t count) {
          std::copy_n(whole.of(kind, parameter.info.name) + index, count, values);
        });
    model_->publish_weights();
  }

  // Expects every copy of every element to be correct, on every rank that must hold it.
  void expect(const WholeState& whole) const {
    int64_t wrong = 0;
    for_stretches_of_state(
        false, [&](StateKind kind, const Parameter& parameter, const float* values, int64_t index, int64_t count) {
          const float* const expected = whole.of(kind, parameter.info.name) + index;
          if (std::memcmp(values, expected, static_cast<size_t>(count) * sizeof(float)) != 0) ++wrong;
        });
    EXPECT_EQ(wrong, 0) << "stretches on rank " << world_.rank();
  }

  // Returns the bytes of all tensors but gradients, with padding.
  std::vector<std::vector<std::byte>> bytes() const {
    std::vector<std::vector<std::byte>> all;
    for (const at::Tensor& tensor : tensors()) kernels::copy_to_host(tensor, all.emplace_back(tensor.nbytes()).data());
    return all;
  }
  void restore(const std::vector<std::vector<std::byte>>& all) {
    auto next = all.begin();
    for (const at::Tensor& tensor : tensors()) kernels::copy_from_host((next++)->data(), tensor);
  }

  PreparedRelayout prepare(const ParallelStrategy& strategy) const {
    return prepare(strategy, optimizer_slots(config_.optimizer.kind));
  }
  PreparedRelayout prepare(const ParallelStrategy& strategy, const std::vector<OptimizerSlot>& slots) const {
    const at::ScalarType dtype = model_->parameters.compute_dtype();
    RelayoutRequest request{.model = config_.model,
                            .sequence_length = config_.train.sequence_length,
                            .from = strategy_,
                            .to = strategy,
                            .recipe = training_recipe(config_.optimizer, dtype)};
    request.recipe.slots = slots;
    return mover_.prepare(request, world_.rank(), model_->state(), dtype, /*keeps_old=*/false).get();
  }

  void move(const ParallelStrategy& strategy) {
    const at::ScalarType dtype = model_->parameters.compute_dtype();
    const PreparedRelayout prepared = prepare(strategy);
    std::vector<BucketState> state = model_->state();
    ASSERT_EQ(prepared.veto, std::nullopt);
    model_.reset();
    for (BucketState& bucket : state) bucket.gradient.reset();
    world_.everyone().barrier();  // no rank uses its old state any more
    const int64_t peak = mover_.move(prepared, dtype, state, [](const std::string&) {});
    EXPECT_EQ(peak, prepared.plan.peak_bytes_by_rank[static_cast<size_t>(world_.rank())]);
    EXPECT_LE(peak, prepared.plan.peak_bound_bytes);
    for (size_t bucket = 0; bucket < state.size(); ++bucket) {
      state[bucket].gradient = allocate_gradient(prepared.buckets[bucket], dtype, mover_.memory());
    }
    mover_.settle(state, ranks_as_processes(world_), -1);
    model_ = std::make_unique<RankModel>(config_, strategy, world_, recorder_, state);
    if (dtype != at::kFloat) model_->publish_weights();
    strategy_ = strategy;
  }

 private:
  std::vector<at::Tensor> tensors() const {
    std::vector<at::Tensor> all;
    for (const BucketState& bucket : model_->state()) {
      for (const StateKind kind : state_kinds(bucket.slots.size())) {
        if (const at::Tensor& tensor = buffer_of(bucket, kind); tensor.defined()) all.push_back(tensor);
      }
    }
    return all;
  }

  template <class Visit>
  void for_stretches_of_state(bool writes, const Visit& visit) const {
    const ParameterStore& parameters = model_->parameters;
    const std::vector<BucketState> state = model_->state();
    const bool weights_are_master = parameters.compute_dtype() == at::kFloat;
    for (const Parameter& parameter : parameters.parameters()) {
      const auto index = static_cast<size_t>(parameter.bucket);
      for (const StateKind kind :
           {weights_are_master ? StateKind::weights : StateKind::master, slot_kind(0), slot_kind(1)}) {
        const at::Tensor& buffer = buffer_of(state[index], kind);
        if (!buffer.defined()) continue;
        const bool is_whole = kind == StateKind::weights && !strategy_.cuts_weights();
        const int64_t begin = is_whole ? 0 : parameters.buckets()[index].shard_begin;
        const int64_t from = std::max<int64_t>(0, begin - parameter.offset);
        const int64_t to = std::min(parameter.box.num_elements(), begin + buffer.numel() - parameter.offset);
        if (from >= to) continue;
        const at::Tensor part = buffer.narrow(0, parameter.offset + from - begin, to - from);
        std::vector<float> values(static_cast<size_t>(to - from));
        kernels::copy_to_host(part, values.data());
        for_stretches(parameter.box, parameter.info.shape, from, to, [&](int64_t position, int64_t at, int64_t count) {
          visit(kind, parameter, values.data() + position - from, at, count);
        });
        if (writes) kernels::copy_from_host(values.data(), part);
      }
    }
  }

  const RunConfig& config_;
  World& world_;
  StepRecorder recorder_;
  StateMover mover_;
  ParallelStrategy strategy_;
  std::unique_ptr<RankModel> model_;
};

}  // namespace copus
