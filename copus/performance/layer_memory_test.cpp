#include "copus/performance/layer_memory.h"

#include <gtest/gtest.h>

#include <vector>

#include "copus/performance/testing/predicted_memory.h"

namespace copus {
namespace {

LayerBytes bytes_of(const std::vector<BlockKind>& kinds, const ModelDescription& model, const LayerShape& shape = {},
                    const TrainingSystem& system = copus_in_bf16()) {
  std::vector<BlockDescription> blocks;
  blocks.reserve(kinds.size());
  for (const BlockKind kind : kinds) blocks.push_back(describe_block(model, kind));
  return layer_bytes(model, blocks, sequence, system, shape);
}

const std::vector<BlockKind> two_blocks = {BlockKind::attention, BlockKind::feed_forward};
constexpr double stream = 128 * 128 * 2;  // bytes of a tensor of the residual stream

TEST(LayerMemory, LayersKeepWhatTheirBlocksKeep) {
  for (const BlockNorm norm : {BlockNorm::input, BlockNorm::both}) {
    ModelDescription model = grouped_query_model();
    model.block_norm = norm;
    EXPECT_EQ(bytes_of({BlockKind::attention}, model).kept + bytes_of({BlockKind::feed_forward}, model).kept,
              bytes_of(two_blocks, model).kept);
    // Parallel blocks share their input. A layer with one block keeps as much as without.
    model.parallel_residual = true;
    EXPECT_EQ(bytes_of({BlockKind::attention}, model).kept + bytes_of({BlockKind::feed_forward}, model).kept - stream,
              bytes_of(two_blocks, model).kept);
  }
}

// The gradients of the stream and of the norm's result exist in a layer with one block too.
TEST(LayerMemory, ALayerWithOneBlockWorksOnWholeStreams) {
  const ModelDescription model = grouped_query_model();
  EXPECT_EQ(bytes_of({BlockKind::feed_forward}, model).working, 2 * stream + 128 * 256 * 2);
  EXPECT_EQ(bytes_of({BlockKind::attention}, model).working, 2 * stream + 128 * (8 * 128 + 4 * 64) * 2);
}

TEST(LayerMemory, OneInputStaysGatheredForEachBlockThatIsRecomputed) {
  const ModelDescription model = grouped_query_model();
  TrainingSystem twice = copus_in_bf16();
  twice.gathers_after_recompute = true;
  const auto inputs = [&](const std::vector<BlockKind>& kinds, Recompute recompute) {
    const LayerShape shape{.tensor_parallel = 4, .sequence_parallel = true, .recompute = recompute};
    return (bytes_of(kinds, model, shape).working - bytes_of(kinds, model, shape, twice).working) / stream;
  };
  EXPECT_EQ(inputs(two_blocks, Recompute::full), 2);
  EXPECT_EQ(inputs(two_blocks, Recompute::attention), 1);
  EXPECT_EQ(inputs({BlockKind::attention}, Recompute::full), 1);
  EXPECT_EQ(inputs({BlockKind::attention}, Recompute::attention), 1);
  EXPECT_EQ(inputs({BlockKind::feed_forward}, Recompute::attention), 0);
}

}  // namespace
}  // namespace copus
