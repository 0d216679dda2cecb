// Tests tensor- and sequence-parallel ranks, as threads, against the whole model on one rank: losses and gradients.
#include "copus/model/layers/tensor_parallel.h"

#include <ATen/Context.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <memory>
#include <mutex>
#include <numeric>
#include <utility>

#include "copus/comm/testing/rank_threads.h"
#include "copus/comm/world.h"
#include "copus/model/kernels/kernels.h"
#include "copus/model/layers/decoder.h"
#include "copus/model/testing/reference_decoder.h"
#include "copus/model/testing/stages_in_turn.h"

namespace copus {
namespace {

using reference::relative_error;

struct Case {
  ParallelStrategy strategy;
  int64_t kv_heads = 4;
  bool tied = false, bias = false;
  QkNorm qk_norm = QkNorm::none;
  WeightGradients::Mode mode = WeightGradients::Mode::immediate;
};

testing::Message description(const Case& c) {
  return testing::Message() << c.strategy.tensor_parallel << " ranks, " << c.strategy.num_stages()
                            << " stages, sequence parallel " << c.strategy.sequence_parallel << ", recompute "
                            << to_string(c.strategy.recompute) << ", " << c.kv_heads << " kv heads, tied " << c.tied
                            << ", bias " << c.bias << ", norms of queries and keys " << static_cast<int>(c.qk_norm);
}

// 131 tokens do not split evenly. 8 query heads share 4, 2 or 1 key/value heads.
ModelDescription model_of(const Case& c) {
  ModelDescription model;
  model.architecture = Architecture::qwen2;
  model.vocab_size = 131;
  model.hidden_size = 40;
  model.intermediate_size = 56;
  model.max_position_embeddings = 16;
  model.num_layers = 2;
  model.num_heads = 8;
  model.num_kv_heads = c.kv_heads;
  model.head_dim = 6;
  model.qkv_bias = model.attention_output_bias = model.feed_forward_bias = c.bias;
  model.qk_norm = c.qk_norm;
  switch (c.qk_norm) {
    case QkNorm::none:
      model.embedding_multiplier = 5;
      model.residual_multiplier = 0.4;
      model.attention_multiplier = 0.3;
      model.logits_scaling = 3;
      break;
    case QkNorm::head:
      model.block_norm = BlockNorm::both;
      model.norms_add_one = true;
      break;
    case QkNorm::projection:
      model.block_norm = BlockNorm::output;
      break;
  }
  if (c.bias) {
    model.norm = NormKind::layer;
    model.learned_positions = true;
    model.activation = ActivationFunction::gelu_tanh;
    model.gated_feed_forward = false;
  }
  model.tie_word_embeddings = c.tied;
  return model;
}

std::vector<MicroBatch> short_micro_batches(const ModelDescription& model) {
  std::vector<MicroBatch> all;
  for (int i = 0; i < 2; ++i) {
    all.push_back(
        {at::randint(model.vocab_size, {2, 10}, at::kLong), at::randint(model.vocab_size, {2, 10}, at::kLong), 0.37});
    all.back().targets[i][3] = ignored_target;
  }
  return all;
}

// Sums gradients over replicas if `partial` says so.
void add_partial_gradients(World& world, const ParameterStore& store) {
  for (const Parameter& parameter : store.parameters()) {
    const Sharding& sharding = parameter.sharding;
    if (!sharding.partial) continue;
    std::vector<int64_t> replicas(static_cast<size_t>(sharding.replicas));
    std::iota(replicas.begin(), replicas.end(), sharding.part_of(world.rank()) * sharding.replicas);
    TensorParallel(world.group(replicas), false).add_up(parameter.gradient);
  }
}

void expect_equals_one_rank(const Case& c, at::ScalarType dtype, double tolerance) {
  SCOPED_TRACE(description(c));
  at::manual_seed(77);
  ParameterStore whole(model_of(c), dtype, at::kCPU);
  randomize(whole);
  const std::vector<MicroBatch> micro_batches = short_micro_batches(whole.model());
  Decoder decoder(whole, Recompute::none);
  std::vector<double> expected;
  for (const MicroBatch& one : micro_batches) {
    expected.push_back(decoder.forward_backward(one.tokens, one.targets, one.loss_scale).item<double>());
  }

  const int64_t ranks = c.strategy.tensor_parallel;
  std::vector<std::vector<double>> losses(static_cast<size_t>(ranks));
  std::mutex mutex;  // guards the assertions of the ranks
  run_ranks_as_threads(ranks, [&](World& world) {
    kernels::set_num_threads(1);
    StagesInTurn stages(whole, c.strategy, TensorParallel(world.everyone(), c.strategy.sequence_parallel));
    std::vector<double>& mine = losses[static_cast<size_t>(world.rank())];
    for (const MicroBatch& one : micro_batches) {
      mine.push_back(stages.evaluate(one));
      mine.push_back(stages.forward_backward(one, c.mode));
    }
    for (const auto& store : stages.stores()) {
      add_partial_gradients(world, *store);
      const std::lock_guard lock(mutex);
      for (const Parameter& parameter : store->parameters()) {
        // Without rotary embeddings a bias of keys has no gradient up to rounding.
        if (whole.model().learned_positions && parameter.info.name.ends_with("k_proj.bias")) continue;
        const Parameter& of_whole = same_parameter(whole, parameter);
        EXPECT_LE(relative_error(parameter.gradient, cut(of_whole.gradient, parameter.box)), tolerance)
            << parameter.info.name << (parameter.tied_copy ? " (tied)" : "") << " on rank " << world.rank();
      }
    }
  });
  for (const std::vector<double>& of_rank : losses) {
    EXPECT_EQ(of_rank, losses[0]) << "every rank counts the same loss";
    for (size_t i = 0; i < expected.size(); ++i) {
      EXPECT_LE(std::abs(of_rank[2 * i] - expected[i]), tolerance * expected[i]);
      EXPECT_EQ(of_rank[2 * i], of_rank[2 * i + 1]) << "evaluation is the forward pass";
    }
  }
}

class TensorParallelModel : public testing::TestWithParam<std::tuple<int64_t, bool>> {
 protected:
  // Returns cases in which every pair of settings occurs.
  static std::vector<Case> cases() {
    std::vector<Case> all;
    const auto [ranks, sequence_parallel] = GetParam();
    for (const int64_t kv_heads : {4, 2, 1}) {
      for (const Recompute recompute : {Recompute::none, Recompute::attention, Recompute::full}) {
        for (const bool tied : {false, true}) {
          const bool bias = tied == (all.size() / 2 % 2 == 0);
          // Combines all norms with all numbers of heads and all recomputes.
          const auto qk_norm = static_cast<QkNorm>(all.size() / 2 % 3);
          all.push_back({{.tensor_parallel = ranks, .sequence_parallel = sequence_parallel, .recompute = recompute},
                         kv_heads,
                         tied,
                         bias,
                         qk_norm});
        }
      }
    }
    return all;
  }
};

TEST_P(TensorParallelModel, EqualsOneRankInFloat64) {
  for (const Case& c : cases()) expect_equals_one_rank(c, at::kDouble, 1e-10);
}

TEST_P(TensorParallelModel, EqualsOneRankToFloat32Rounding) {
  for (const Case& c : cases()) {
    if (c.strategy.recompute == Recompute::none) expect_equals_one_rank(c, at::kFloat, 1e-5);
  }
}

TEST_P(TensorParallelModel, CutIntoStagesAndWithDeferredWeightGradientsToo) {
  for (Case c : cases()) {
    if (c.strategy.recompute == Recompute::attention) continue;
    c.strategy.pipeline_parallel = 2;
    c.mode = WeightGradients::Mode::deferred;
    expect_equals_one_rank(c, at::kDouble, 1e-10);
  }
}

INSTANTIATE_TEST_SUITE_P(, TensorParallelModel, testing::Combine(testing::Values(2, 4), testing::Bool()),
                         [](const auto& parameters) {
                           return std::to_string(std::get<0>(parameters.param)) + "Ranks" +
                                  (std::get<1>(parameters.param) ? "SequenceParallel" : "");
                         });

TEST(TensorParallel, GatherAndReduceKeepTheOrderOfTheRanks) {
  for (const at::ScalarType dtype : {at::kDouble, at::kFloat, at::kBFloat16}) {
    run_ranks_as_threads(3, [&](World& world) {
      const TensorParallel group(world.everyone(), /*sequence_parallel=*/true);
      const at::Tensor all = at::arange(24, at::kFloat).view({6, 4}).to(dtype);
      const at::Tensor local = all.narrow(0, 2 * world.rank(), 2).contiguous();
      EXPECT_TRUE(group.gather(local).equal(all));
      EXPECT_TRUE(group.reduce(all * (world.rank() + 1)).equal(local * 6));
      PendingRows gathered = group.start_gather(local.clone()), sum = group.start_reduce(all * (world.rank() + 1));
      EXPECT_TRUE(gathered.wait().equal(all));
      EXPECT_TRUE(sum.wait().equal(local * 6));
      EXPECT_EQ(group.local_rows(6), 2);
    });
  }
}

TEST(TensorParallel, PendingRowsAreLeakedOnlyIfTheirCollectiveIsUnderWay) {
  struct Collective : Work::State {
    explicit Collective(bool done_already) : is_done(done_already) {}
    void wait() override {}
    bool done() override { return is_done; }
    const bool is_done;
  };
  const auto is_freed = [](bool is_done) {
    at::Tensor rows = at::zeros({2, 4});
    const c10::weak_intrusive_ptr<at::TensorImpl> weak(rows.getIntrusivePtr());
    {
      const PendingRows pending(std::move(rows), at::zeros({1, 4}), Work(std::make_shared<Collective>(is_done)));
    }
    return weak.expired();
  };
  EXPECT_TRUE(is_freed(true));
  EXPECT_FALSE(is_freed(false));
}

TEST(TensorParallel, WithoutSequenceParallelismEveryRankHoldsAllRows) {
  run_ranks_as_threads(2, [&](World& world) {
    const TensorParallel group(world.everyone(), /*sequence_parallel=*/false);
    const at::Tensor all = at::arange(8, at::kFloat).view({2, 4});
    EXPECT_TRUE(group.gather(all).is_same(all));
    EXPECT_TRUE(group.reduce(all.clone()).equal(all * 2));
    EXPECT_TRUE(group.start_gather(all).wait().is_same(all));
    EXPECT_TRUE(group.start_reduce(all.clone()).wait().equal(all * 2));
    EXPECT_EQ(group.local_rows(6), 6);
  });
}

TEST(TensorParallel, OneRankIsTheIdentity) {
  const TensorParallel alone;
  const at::Tensor rows = at::randn({3, 4});
  EXPECT_TRUE(alone.gather(rows).is_same(rows));
  EXPECT_TRUE(alone.reduce(rows).is_same(rows));
  EXPECT_TRUE(alone.start_gather(rows).wait().is_same(rows));
  EXPECT_TRUE(alone.start_reduce(rows).wait().is_same(rows));
}

// Each chunk of the head sends one message, so ranks must agree on its rows, which follow from a limit of 2^22 logits.
// The parts of 64,527 and 64,528 tokens alone would give 65 and 64 rows.
TEST(TensorParallel, HeadChunksHaveEqualRowsOnRanksWithUnequalParts) {
  ModelDescription model = model_of({.strategy = {.tensor_parallel = 2}});
  model.vocab_size = 129'055;
  model.hidden_size = 8;
  model.num_layers = 1;
  at::manual_seed(78);
  ParameterStore whole(model, at::kFloat, at::kCPU);
  randomize(whole);
  const MicroBatch micro_batch{at::randint(model.vocab_size, {3, 50}, at::kLong),
                               at::randint(model.vocab_size, {3, 50}, at::kLong), 1.0};
  Decoder decoder(whole, Recompute::none);
  const double expected = decoder.forward_backward(micro_batch.tokens, micro_batch.targets, 1.0).item<double>();
  run_ranks_as_threads(2, [&](World& world) {
    kernels::set_num_threads(1);
    StagesInTurn stages(whole, {.tensor_parallel = 2}, TensorParallel(world.everyone(), false));
    const double loss = stages.forward_backward(micro_batch, WeightGradients::Mode::immediate);
    EXPECT_LE(std::abs(loss - expected), 1e-6 * expected);
    const Parameter& head = stages.stores()[0]->find("lm_head.weight");
    EXPECT_LE(relative_error(head.gradient, cut(whole.find("lm_head.weight").gradient, head.box)), 1e-5);
  });
}

}  // namespace
}  // namespace copus
