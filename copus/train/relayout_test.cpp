// Moves of a model's state through sequences of layouts, with ranks as threads: every element is where it should be
// after each move, whatever moved before.
#include "copus/train/relayout.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "copus/base/error.h"
#include "copus/base/philox.h"
#include "copus/comm/testing/rank_threads.h"
#include "copus/model/kernels.h"
#include "copus/model/precision.h"
#include "copus/placement/sharding.h"
#include "copus/train/rank_model.h"
#include "copus/train/state_hash.h"
#include "copus/train/testing/test_layouts.h"

namespace copus {
namespace {

// Number of random sequences; COPUS_RELAYOUT_SEQUENCES asks for more.
int64_t num_sequences() {
  const char* const wanted = std::getenv("COPUS_RELAYOUT_SEQUENCES");
  return wanted == nullptr ? 60 : std::atoll(wanted);
}

RunConfig tiny_run() {
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

// Lists all layouts of so many ranks.
std::vector<ParallelStrategy> strategies_of(const RunConfig& config, int64_t ranks) {
  std::vector<ParallelStrategy> strategies;
  const auto add = [&](ParallelStrategy strategy) {
    if (ranks % (strategy.tensor_parallel * strategy.pipeline_parallel) != 0) return;
    strategy.data_parallel = ranks / (strategy.tensor_parallel * strategy.pipeline_parallel);
    const Configuration configuration{strategy, config.train.global_batch, config.train.micro_batch};
    if (infeasible_reason(config.model, configuration, config.train.sequence_length)) return;
    strategies.push_back(strategy);
  };
  for (const int64_t tensor : {1, 2, 4}) {
    for (int64_t pipeline = 1; pipeline <= 6; ++pipeline) {
      for (const bool sequence_parallel : {false, true}) {
        for (const auto& [zero_stage, replicas] :
             {std::pair<int64_t, int64_t>{0, 1}, {1, 1}, {2, 1}, {3, 1}, {1, 2}, {3, 2}}) {
          ParallelStrategy strategy{.tensor_parallel = tensor,
                                    .pipeline_parallel = pipeline,
                                    .sequence_parallel = sequence_parallel,
                                    .zero_stage = zero_stage,
                                    .zero_replicas = replicas};
          for (const PipelineSchedule schedule :
               {PipelineSchedule::gpipe, PipelineSchedule::one_f_one_b, PipelineSchedule::zb_h1}) {
            strategy.schedule = schedule;
            add(strategy);
          }
          strategy.schedule = PipelineSchedule::interleaved_1f1b;
          for (const int64_t virtual_stages : {2, 3}) {
            strategy.virtual_stages = virtual_stages;
            add(strategy);
          }
        }
      }
    }
  }
  return strategies;
}

// Whole tensors of random numbers for each kind of state.
class WholeState {
 public:
  explicit WholeState(const ModelDescription& model) {
    for (const StateKind kind : {StateKind::master, StateKind::exp_avg, StateKind::exp_avg_sq}) {
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

// The state of one rank, with its mover.
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
                           compute_dtype(config.train.precision), mover_.memory(), /*moments=*/true))) {
    EXPECT_EQ(mover_.has_arena(), shares_memory && test_device().is_cpu());
    mover_.settle(model_->state(), ranks_as_processes(world), -1);
  }

  RankModel& model() { return *model_; }

  void fill(const WholeState& whole) {
    for_stretches_of_state(
        true, [&](StateKind kind, const Parameter& parameter, float* values, int64_t index, int64_t count) {
          std::copy_n(whole.of(kind, parameter.info.name) + index, count, values);
        });
    model_->publish_weights();
  }

  // Expects every copy of every element to be right, on every rank that should hold it.
  void expect(const WholeState& whole) const {
    int64_t wrong = 0;
    for_stretches_of_state(
        false, [&](StateKind kind, const Parameter& parameter, const float* values, int64_t index, int64_t count) {
          const float* const expected = whole.of(kind, parameter.info.name) + index;
          if (std::memcmp(values, expected, static_cast<size_t>(count) * sizeof(float)) != 0) ++wrong;
        });
    EXPECT_EQ(wrong, 0) << "stretches on rank " << world_.rank();
  }

  // Bytes of all tensors but gradients, padding included.
  std::vector<std::vector<std::byte>> bytes() const {
    std::vector<std::vector<std::byte>> all;
    for (const BucketState& bucket : model_->state()) {
      for (const at::Tensor* tensor : {&bucket.weight, &bucket.master, &bucket.exp_avg, &bucket.exp_avg_sq}) {
        if (!tensor->defined()) continue;
        kernels::copy_to_host(*tensor, all.emplace_back(tensor->nbytes()).data());
      }
    }
    return all;
  }

  PreparedRelayout prepare(const ParallelStrategy& strategy) const {
    const at::ScalarType dtype = model_->parameters.compute_dtype();
    const RelayoutRequest request{.model = config_.model,
                                  .sequence_length = config_.train.sequence_length,
                                  .from = strategy_,
                                  .to = strategy,
                                  .weights_are_master = dtype == at::kFloat};
    return mover_.prepare(request, world_.rank(), model_->state(), dtype, /*keeps_old=*/false).get();
  }

  void move(const ParallelStrategy& strategy) {
    const at::ScalarType dtype = model_->parameters.compute_dtype();
    const PreparedRelayout prepared = prepare(strategy);
    std::vector<BucketState> state = model_->state();
    ASSERT_EQ(prepared.veto, std::nullopt);
    model_.reset();
    for (BucketState& bucket : state) bucket.gradient.reset();
    world_.everyone().barrier();  // no rank is still busy with its state
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
  template <class Visit>
  void for_stretches_of_state(bool writes, const Visit& visit) const {
    const ParameterStore& parameters = model_->parameters;
    const std::vector<BucketState> state = model_->state();
    const bool weights_are_master = parameters.compute_dtype() == at::kFloat;
    for (const Parameter& parameter : parameters.parameters()) {
      const auto index = static_cast<size_t>(parameter.bucket);
      for (const StateKind kind :
           {weights_are_master ? StateKind::weights : StateKind::master, StateKind::exp_avg, StateKind::exp_avg_sq}) {
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

struct Sequence {
  int64_t ranks;
  std::vector<ParallelStrategy> strategies;  // the last one is the first one again
  bool shares_memory;
  bool as_on_a_device;  // with messages, as GPUs that ranks share send them
};

Sequence draw(const RunConfig& config, std::mt19937& random) {
  const auto below = [&](size_t bound) { return random() % bound; };
  const std::vector<int64_t> sizes = {1, 2, 3, 4, 6, 8, 8};
  Sequence sequence{.ranks = sizes[below(sizes.size())],
                    .strategies = {},
                    .shares_memory = below(2) != 0,
                    .as_on_a_device = below(2) != 0};
  const std::vector<ParallelStrategy> all = strategies_of(config, sequence.ranks);
  for (size_t moves = 2 + below(3); moves > 0; --moves) sequence.strategies.push_back(all[below(all.size())]);
  sequence.strategies.push_back(sequence.strategies.front());
  return sequence;
}

std::string to_text(const Sequence& sequence) {
  std::string text = sequence.shares_memory    ? "in arenas:"
                     : sequence.as_on_a_device ? "as messages of a device:"
                                               : "as messages:";
  for (const ParallelStrategy& strategy : sequence.strategies) {
    text += concat(" ", to_string(strategy), "/v", strategy.virtual_stages, "/", to_string(strategy.schedule), "/zero",
                   strategy.zero_stage, "x", strategy.zero_replicas, strategy.sequence_parallel ? "/sp" : "");
  }
  return text;
}

void expect_identity(const RunConfig& config, const Sequence& sequence) {
  const WholeState whole(config.model);
  TrainingState counters;
  counters.consumed_samples = 96;
  const uint64_t expected_hash = whole.hash() + hash_counters(counters);
  run_ranks_as_threads(
      sequence.ranks,
      [&](World& plain) {
        kernels::set_num_threads(1);
        const bool as_on_a_device = sequence.as_on_a_device && !sequence.shares_memory && test_device().is_cpu();
        const auto connected = as_on_a_device ? layouts::as_on_a_device(plain) : layouts::on_test_device(plain);
        World& world = *connected;
        MovingState state(config, sequence.strategies.front(), world, sequence.shares_memory);
        state.fill(whole);
        const std::vector<std::vector<std::byte>> before = state.bytes();
        for (size_t move = 1; move < sequence.strategies.size(); ++move) {
          state.move(sequence.strategies[move]);
          state.expect(whole);
          EXPECT_EQ(state_hash(state.model(), counters, world.everyone()), expected_hash);
        }
        EXPECT_TRUE(state.bytes() == before) << "rank " << world.rank();
      },
      60);
  if (::testing::Test::HasFailure()) ADD_FAILURE() << to_text(sequence);
}

TEST(Relayout, StateComesBackBitwiseFromAnySequenceOfLayouts) {
  std::mt19937 random(7);
  const std::vector<layouts::Change> variants = {
      layouts::fp32, layouts::bf16, layouts::tied, layouts::biases, layouts::kv_heads(1), [](RunConfig& config) {
        layouts::tied(config);
        layouts::bf16(config);
      }};
  for (int64_t i = 0; i < num_sequences() && !::testing::Test::HasFailure(); ++i) {
    RunConfig config = tiny_run();
    variants[static_cast<size_t>(i) % variants.size()](config);
    expect_identity(config, draw(config, random));
  }
}

// Failures before anything has moved are a veto, so that the job can go on.
TEST(Relayout, AFailureToPrepareIsAVeto) {
  RunConfig config = tiny_run();
  run_ranks_as_threads(2, [&](World& plain) {
    const auto connected = layouts::on_test_device(plain);
    World& world = *connected;
    MovingState state(config, {.data_parallel = 2}, world, true);
    const PreparedRelayout prepared = state.prepare({.pipeline_parallel = config.model.num_layers + 1});
    ASSERT_TRUE(prepared.veto.has_value());
    EXPECT_THAT(prepared.veto->reason, ::testing::HasSubstr("cannot prepare"));
    EXPECT_FALSE(prepared.veto->is_lack_of_memory);
  });
}

// The hash must change with one bit of one element, and with two elements that are interchanged.
TEST(Relayout, TheHashSeesEveryElementAndItsPlace) {
  RunConfig config = tiny_run();
  const WholeState whole(config.model);
  run_ranks_as_threads(4, [&](World& plain) {
    kernels::set_num_threads(1);
    const auto connected = layouts::on_test_device(plain);
    World& world = *connected;
    MovingState state(config, {.data_parallel = 2, .pipeline_parallel = 2, .zero_stage = 1}, world, true);
    state.fill(whole);
    const uint64_t expected = state_hash(state.model(), {}, world.everyone());
    EXPECT_EQ(expected, whole.hash() + hash_counters({}));
    const at::Tensor moments = state.model().optimizer.exp_avg().front();
    const bool is_first = world.rank() == 0;
    const auto swap_first_two = [&] {
      if (is_first) moments.narrow(0, 0, 2).copy_(moments.narrow(0, 0, 2).flip(0));
    };
    swap_first_two();
    EXPECT_NE(state_hash(state.model(), {}, world.everyone()), expected);
    swap_first_two();
    EXPECT_EQ(state_hash(state.model(), {}, world.everyone()), expected);
    TrainingState later;
    later.consumed_samples = 1;
    EXPECT_NE(state_hash(state.model(), later, world.everyone()), expected);
  });
}

}  // namespace
}  // namespace copus
