// Moves a model's state through sequences of layouts, with ranks as threads. After each move every element is in its
// place, whatever moved before.
#include "copus/train/switch/relayout.h"

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
#include "copus/base/numbers/philox.h"
#include "copus/comm/testing/rank_threads.h"
#include "copus/model/kernels/kernels.h"
#include "copus/model/kernels/precision.h"
#include "copus/placement/sharding.h"
#include "copus/train/testing/moving_state.h"
#include "copus/train/testing/test_layouts.h"

namespace copus {
namespace {

// Number of random sequences; COPUS_RELAYOUT_SEQUENCES sets another one.
int64_t num_sequences() {
  const char* const wanted = std::getenv("COPUS_RELAYOUT_SEQUENCES");
  return wanted == nullptr ? 60 : std::atoll(wanted);
}

// Lists all layouts of `ranks` ranks.
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

struct Sequence {
  int64_t ranks;
  std::vector<ParallelStrategy> strategies;  // the last one equals the first
  bool shares_memory;
  bool as_on_a_device;  // by messages, as GPUs that ranks share send them
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
        const StateHash at_first = state.hash(counters);
        for (size_t move = 1; move < sequence.strategies.size(); ++move) {
          state.move(sequence.strategies[move]);
          state.expect(whole);
          const StateHash hash = state.hash(counters);
          EXPECT_EQ(hash.value(), expected_hash);
          EXPECT_EQ(hash.damage_since(at_first), std::nullopt);
        }
        EXPECT_TRUE(state.bytes() == before) << "rank " << world.rank();
      },
      60);
  if (::testing::Test::HasFailure()) ADD_FAILURE() << to_text(sequence);
}

TEST(Relayout, StateComesBackBitwiseFromAnySequenceOfLayouts) {
  std::mt19937 random(7);
  const std::vector<layouts::Change> variants = {layouts::fp32,
                                                 layouts::bf16,
                                                 layouts::tied,
                                                 layouts::biases_everywhere,
                                                 layouts::like_gpt2,
                                                 layouts::normalized_heads,
                                                 layouts::normalized_outputs_and_projections,
                                                 layouts::kv_heads(1),
                                                 [](RunConfig& config) {
                                                   layouts::tied(config);
                                                   layouts::bf16(config);
                                                 }};
  for (int64_t i = 0; i < num_sequences() && !::testing::Test::HasFailure(); ++i) {
    RunConfig config = tiny_run();
    variants[static_cast<size_t>(i) % variants.size()](config);
    expect_identity(config, draw(config, random));
  }
}

// Failures before anything has moved are a veto, so that the job can continue.
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
    const PreparedRelayout cut =
        state.prepare({.data_parallel = 2, .zero_stage = 1}, {{"momentum", DType::f32, CutUnit::matrix}});
    ASSERT_TRUE(cut.veto.has_value());
    EXPECT_THAT(cut.veto->reason, ::testing::HasSubstr("parallel.zero_stage 1 cuts"));
  });
}

// The hash must change if one bit of one element changes, and if two elements are swapped.
TEST(Relayout, TheHashSeesEveryElementAndItsPlace) {
  RunConfig config = tiny_run();
  const WholeState whole(config.model);
  run_ranks_as_threads(4, [&](World& plain) {
    kernels::set_num_threads(1);
    const auto connected = layouts::on_test_device(plain);
    World& world = *connected;
    MovingState state(config, {.data_parallel = 2, .pipeline_parallel = 2, .zero_stage = 1}, world, true);
    state.fill(whole);
    const uint64_t expected = state.hash({}).value();
    EXPECT_EQ(expected, whole.hash() + hash_counters({}));
    const at::Tensor moments = state.model().optimizer->slot_tensors(0).front();
    const bool is_first = world.rank() == 0;
    const auto swap_first_two = [&] {
      if (is_first) moments.narrow(0, 0, 2).copy_(moments.narrow(0, 0, 2).flip(0));
    };
    swap_first_two();
    EXPECT_NE(state.hash({}).value(), expected);
    swap_first_two();
    EXPECT_EQ(state.hash({}).value(), expected);
    TrainingState later;
    later.consumed_samples = 1;
    EXPECT_NE(state.hash(later).value(), expected);
  });
}

}  // namespace
}  // namespace copus
