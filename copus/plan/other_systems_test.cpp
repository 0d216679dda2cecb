// Compares the predicted memory of other trainers with what their own layers kept.
#include "copus/plan/other_systems.h"

#include <gtest/gtest.h>

#include <map>
#include <utility>
#include <vector>

#include "copus/performance/memory.h"
#include "copus/performance/testing/predicted_memory.h"

namespace copus {
namespace {

// A layer 512 wide, with 16 heads of 32, 8 key-value heads and a feed-forward of 1792. bench/trainers measures other
// trainers' layers of this size, on sequences of 256.
ModelDescription measured_layer() {
  ModelDescription model = grouped_query_model();
  model.hidden_size = 512;
  model.intermediate_size = 1792;
  model.num_layers = 1;
  model.num_heads = 16;
  model.num_kv_heads = 8;
  model.head_dim = 32;
  return model;
}

// Bytes that each trainer's own layer kept from its forward to its backward pass under a fake process group of t ranks
// (bench/trainers); torchtitan's layers were compiled.
TEST(OtherSystems, TrainersKeepWhatTheirOwnLayersKept) {
  using Measured = std::map<int64_t, double>;  // by t
  const std::vector<std::pair<TrainingSystem, Measured>> trainers = {
      {torchtitan(TorchtitanVersion::v0_2), {{1, 4605952}, {2, 2565120}, {4, 1544704}, {8, 1034496}}},
      {torchtitan(TorchtitanVersion::v0_3), {{1, 4614144}, {2, 2573312}, {4, 1552896}, {8, 1042688}}},
      {megatron(), {{1, 4999168}, {2, 2499584}, {4, 1249792}, {8, 624896}}}};
  for (const auto& [system, measured] : trainers) {
    MemoryModel memory(measured_layer(), 256, system);
    for (const auto& [t, bytes] : measured) {
      ParallelStrategy strategy{.tensor_parallel = t, .sequence_parallel = t > 1};
      EXPECT_NEAR(memory.predict(batches_of(strategy, 1, 1)).parts.activations / bytes, 1, 0.03) << system.name << t;
      strategy.recompute = Recompute::full;
      EXPECT_EQ(memory.predict(batches_of(strategy, 1, 1)).parts.activations, static_cast<double>(256 * 512 * 2 / t));
    }
  }
}

// The norms are those of query and key heads (--qk-layernorm). With one key-value head per rank, the layer keeps less
// than we count.
TEST(OtherSystems, MegatronKeepsWhatItsNormsOfHeadsKept) {
  ModelDescription model = measured_layer();
  model.qk_norm = QkNorm::head;
  MemoryModel memory(model, 256, megatron());
  for (const auto& [t, bytes] : {std::pair{1, 5285888.0}, {2, 2642944.0}, {4, 1321472.0}, {8, 627968.0}}) {
    const ParallelStrategy strategy{.tensor_parallel = t, .sequence_parallel = t > 1};
    const double kept = memory.predict(batches_of(strategy, 1, 1)).parts.activations;
    EXPECT_NEAR(kept / bytes, 1, t < 8 ? 0.03 : 0.05) << t;
  }
}

// Selective recompute of compiled layers. The expected bytes are what the layers kept on a CPU, plus attention's
// result, which they keep only with a GPU's kernels, minus 5,056 bytes of random state.
TEST(OtherSystems, TorchtitansSelectiveRecomputeKeepsWhatItsLayersKept) {
  ParallelStrategy strategy;
  strategy.recompute = Recompute::attention;
  const double result = 256 * (512 * 2 + 16 * 4);
  for (const auto& [version, bytes] :
       {std::pair{TorchtitanVersion::v0_2, 1577920}, {TorchtitanVersion::v0_3, 1711040}}) {
    MemoryModel memory(measured_layer(), 256, torchtitan(version));
    EXPECT_NEAR(memory.predict(batches_of(strategy, 1, 1)).parts.activations / (bytes - 5056 + result), 1, 0.03);
  }
}

// bf16 logits, and one fp32 tensor for logits, softmax and gradient in turn.
TEST(OtherSystems, MegatronsLogitsTakeSixBytes) {
  const ModelDescription model = grouped_query_model();
  EXPECT_EQ(parts_of(batches_of({}, 2, 1), megatron(), model).logits, 256.0 * 1024 * 6);
  EXPECT_EQ(parts_of(batches_of({.tensor_parallel = 4}, 2, 1), megatron(), model).logits, 256.0 * 1024 * 6 / 4);
}

// The head of 0.3 processes eighths of a micro-batch; sequence-parallel ranks gather its whole input.
TEST(OtherSystems, TorchtitansHeadWorksOnPiecesSinceVersion3) {
  const ModelDescription model = grouped_query_model();
  const auto head = [&](TorchtitanVersion version, int64_t t) {
    const ParallelStrategy strategy{.tensor_parallel = t, .sequence_parallel = t > 1};
    return parts_of(batches_of(strategy, 2, 1), torchtitan(version), model).logits;
  };
  const double logits = 256.0 * 1024 * 16, tensor = 256.0 * 128 * 2;
  EXPECT_EQ(head(TorchtitanVersion::v0_2, 1), logits + 2 * tensor);
  EXPECT_EQ(head(TorchtitanVersion::v0_2, 4), logits / 4 + 2 * tensor);
  EXPECT_EQ(head(TorchtitanVersion::v0_3, 1), logits / 8 + 4 * tensor);
}

}  // namespace
}  // namespace copus
