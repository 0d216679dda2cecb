// Tests that whole tensors reach the ranks that write them, from any layout.
#include "copus/train/state/checkpoint_transfer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "copus/base/error.h"
#include "copus/base/testing/test_support.h"
#include "copus/model/kernels/kernels.h"
#include "copus/model/memory/caching_allocator.h"
#include "copus/train/testing/take_snapshot.h"
#include "copus/train/testing/test_layouts.h"

namespace copus {
namespace {

using namespace layouts;

constexpr CheckpointLimits all_ranks_write{.bytes_per_writer = 1};

class CheckpointTransfer : public ::testing::Test {
 protected:
  CheckpointTransfer() { write_corpus(corpus()); }

  std::filesystem::path corpus() const { return folder_.path() / "corpus.txt"; }

  RunConfig config(const std::vector<Change>& changes) const {
    RunConfig config = small_run_of_four_layers(corpus());
    config.train.max_steps = 2;
    return with_changes(config, changes);
  }

  // Returns the bytes of each tensor that a layout's ranks deliver after they have restored `checkpoint`.
  static std::map<std::string, std::string> hand_over(const RunConfig& config, const Checkpoint& checkpoint,
                                                      const Connect& connect = on_test_device) {
    std::mutex mutex;
    std::map<std::string, std::string> tensors;
    train_on_every_rank(
        config,
        [&](Trainer& trainer, World& world, const Dataset&) {
          trainer.restore(checkpoint);
          const CheckpointPlan plan = trainer.plan_checkpoint(all_ranks_write);
          EXPECT_EQ(std::ssize(plan.writers()), world.size());
          std::string all;
          trainer.hand_over_state(plan, [&](std::span<const std::byte> bytes) {
            all.append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
          });
          const std::lock_guard lock(mutex);
          size_t begin = 0;
          for (const int64_t tensor : plan.tensors_of(world.rank())) {
            tensors[plan.tensors[tensor].name] = all.substr(begin, plan.tensors[tensor].bytes());
            begin += plan.tensors[tensor].bytes();
          }
          EXPECT_EQ(begin, all.size()) << "rank " << world.rank();
        },
        connect);
    return tensors;
  }

  // Writes a checkpoint of one rank after a few steps of training.
  Checkpoint write(const std::vector<Change>& changes) const {
    train_on_every_rank(config(changes), [&](Trainer& trainer, World&, const Dataset&) {
      trainer.step();
      trainer.step();
      CheckpointWriter writer(folder_.path() / "checkpoints", 1);
      writer.write(*take_snapshot(trainer));
      writer.finish();
    });
    return Checkpoint(latest_checkpoint(folder_.path() / "checkpoints").value());
  }

  static std::map<std::string, std::string> bytes_in(const Checkpoint& checkpoint) {
    std::map<std::string, std::string> tensors;
    for (const auto* kind : {&checkpoint.weights(), &checkpoint.optimizer()}) {
      for (const auto& [name, tensor] : *kind) {
        tensors[name].assign(reinterpret_cast<const char*>(tensor.bytes.data()), tensor.bytes.size());
      }
    }
    return tensors;
  }

  void expect_same_in(const std::vector<Change>& base, const std::vector<std::vector<Change>>& layouts) const {
    const Checkpoint checkpoint = write(base);
    const std::map<std::string, std::string> expected = bytes_in(checkpoint);
    for (size_t i = 0; i < layouts.size(); ++i) {
      SCOPED_TRACE(concat("layout ", i));
      EXPECT_TRUE(hand_over(config(join(base, layouts[i])), checkpoint) == expected);
    }
  }

  TemporaryFolder folder_;
};

TEST_F(CheckpointTransfer, EveryLayoutHandsOverTheBytesOfOneRank) {
  expect_same_in({}, {{ranks(2, 1, 1)},
                      {ranks(4, 1, 1), zero_1},
                      {ranks(4, 1, 1), zero_3},
                      {ranks(4, 1, 1), zero(2, 2)},
                      {ranks(1, 1, 4), zb_h1},
                      {ranks(1, 1, 2), interleaved},
                      {ranks(1, 4, 1)},
                      {ranks(2, 2, 2), zero_1, sequence_parallel}});
}

TEST_F(CheckpointTransfer, TiedEmbeddingsAndSharedKeysToo) {
  expect_same_in({tied, kv_heads(1)}, {{ranks(1, 1, 2)}, {ranks(2, 4, 1), zero_1}, {ranks(2, 2, 2), zero_1}});
}

TEST_F(CheckpointTransfer, BiasesAndRoundedWeightsToo) {
  expect_same_in({biases, bf16}, {{ranks(2, 2, 1), zero_1}, {ranks(2, 1, 2), zero_1}, {ranks(1, 4, 2)}});
}

// Files hold these tensors fused and transposed, as in transformers. A resumed run splits them again.
TEST_F(CheckpointTransfer, TensorsThatFilesFuseAndTransposeToo) {
  expect_same_in({like_gpt2, tied}, {{ranks(1, 4, 1)},
                                     {ranks(2, 2, 1), zero_1},
                                     {ranks(2, 1, 2), zero_3},
                                     {ranks(2, 2, 2), zero_2, sequence_parallel}});
  expect_same_in({like_phi3, kv_heads(1)}, {{ranks(1, 4, 1)}, {ranks(2, 2, 2), zero_2, sequence_parallel}});
  expect_same_in({like_gpt_neox}, {{ranks(1, 4, 1)}, {ranks(2, 2, 2), zero_2, sequence_parallel}});
  const Checkpoint checkpoint = write({like_gpt2, tied});
  EXPECT_EQ(checkpoint.weight("transformer.h.3.attn.c_attn.weight").shape, (std::vector<int64_t>{64, 192}));
  EXPECT_EQ(checkpoint.optimizer("exp_avg.model.layers.3.mlp.up_proj.weight").shape, (std::vector<int64_t>{96, 64}));
}

// Matrices of 6 MB, whose row size does not divide a piece, so that pieces begin and end within rows.
TEST_F(CheckpointTransfer, TensorsThatTravelInSeveralPiecesToo) {
  const Change large = [](RunConfig& config) {
    config.model.hidden_size = 256;
    config.model.intermediate_size = 6000;
    config.model.num_layers = 2;
    config.model.head_dim = 64;
  };
  ASSERT_GT(256 * 6000 * 4, piece_bytes(4));
  ASSERT_NE(piece_bytes(4) / 4 % 6000, 0);
  expect_same_in({large},
                 {{ranks(1, 4, 1)}, {ranks(2, 2, 1), zero_1}, {ranks(2, 1, 2), zero_3}, {ranks(4, 1, 1), zero(3, 2)}});
}

TEST_F(CheckpointTransfer, StateOnADeviceToo) {
  if (!test_device().is_cpu()) GTEST_SKIP() << "all tests are on a device";
  const Checkpoint checkpoint = write({});
  EXPECT_TRUE(hand_over(config({ranks(2, 2, 1), zero_1}), checkpoint, as_on_a_device) == bytes_in(checkpoint));
}

// Pipeline ranks, and data-parallel ranks that hold everything, write only what they hold.
TEST_F(CheckpointTransfer, RanksWriteMostlyWhatTheyHold) {
  for (const auto& [layout, least] : {std::pair(ranks(4, 1, 1), 1.0), std::pair(ranks(1, 1, 4), 0.7)}) {
    train_on_every_rank(config({layout}), [&, least = least](Trainer& trainer, World& world, const Dataset&) {
      const CheckpointPlan plan = trainer.plan_checkpoint(all_ranks_write);
      double at_hand = 0;
      for (const int64_t tensor : plan.tensors_of(world.rank())) {
        const std::vector<int64_t>& ranks = plan.tensors[tensor].at_hand;
        if (std::ranges::count(ranks, world.rank()) > 0) at_hand += static_cast<double>(plan.tensors[tensor].bytes());
      }
      world.everyone().all_reduce(&at_hand, 1, DataType::float64);
      EXPECT_GE(at_hand, least * static_cast<double>(plan.bytes()));
    });
  }
}

// Ranks are threads, so their memory is counted together.
TEST_F(CheckpointTransfer, NeedsAFewPiecesOfMemoryBesideTheState) {
  install_caching_allocator();  // counts memory
  const Change large = [](RunConfig& config) {
    config.model.hidden_size = 256;
    config.model.intermediate_size = 2048;
    config.model.num_heads = 8;
    config.model.head_dim = 32;
    config.model.num_layers = 8;
  };
  for (const auto& [layout, num_ranks] : {std::pair(ranks(1, 1, 1), 1), std::pair(ranks(2, 1, 2), 4)}) {
    train_on_every_rank(
        config({large, layout, zero_1}), [&, num_ranks = num_ranks](Trainer& trainer, World& world, const Dataset&) {
          const CheckpointPlan plan = trainer.plan_checkpoint(all_ranks_write);
          // State on a device is first copied to the host. A round has one piece per writer.
          const bool on_host = test_device().is_cpu();
          const int64_t most = (on_host ? 2 : 2 + num_ranks) * num_ranks * piece_bytes(num_ranks);
          ASSERT_GT(plan.bytes(), on_host ? 5 * most : 3 * most / 2) << "the bound would prove nothing";
          world.everyone().barrier();
          if (world.rank() == 0) reset_peak_host_memory();
          const int64_t before = host_memory().used_bytes;
          world.everyone().barrier();
          int64_t taken = 0;
          trainer.hand_over_state(plan, [&](std::span<const std::byte> bytes) { taken += std::ssize(bytes); });
          world.everyone().all_reduce(&taken, 1, DataType::int64);
          EXPECT_EQ(taken, plan.bytes());
          EXPECT_LE(host_memory().peak_used_bytes - before, most);
          EXPECT_GE(host_memory().peak_used_bytes - before, piece_bytes(num_ranks)) << "nothing was counted";
        });
  }
  // Releases cached memory, because later tests set limits.
  set_host_memory_limit(1);
  EXPECT_THROW(kernels::empty({1 << 28}, at::kFloat, at::kCPU), HostMemoryExceeded);
  set_host_memory_limit(0);
}

TEST_F(CheckpointTransfer, AnUnknownPartOfTheOptimizerIsRefused) {
  train_on_every_rank(config({}), [&](Trainer& trainer, World&, const Dataset&) {
    trainer.step();
    Snapshot snapshot = *take_snapshot(trainer);
    snapshot.optimizer.push_back(make_host_tensor("momentum.model.norm.weight", DType::f32, {4}));
    CheckpointWriter writer(folder_.path() / "checkpoints", 1);
    writer.write(std::move(snapshot));
    writer.finish();
    const Checkpoint checkpoint(latest_checkpoint(folder_.path() / "checkpoints").value());
    EXPECT_THAT(user_error([&] { trainer.restore(checkpoint); }),
                testing::HasSubstr("its optimizer has \"momentum.model.norm.weight\", which this Copus does not know"));
  });
}

}  // namespace
}  // namespace copus
