#include "copus/performance/sharded_stage.h"

#include <gtest/gtest.h>

namespace copus {
namespace {

// A middle stage with ten layers.
ShardedStage some_stage(double gather, double reduce) {
  ShardedStage stage;
  stage.layers.assign(10,
                      {.forward = 10, .backward_input = 10, .backward_weight = 10, .gather = gather, .reduce = reduce});
  stage.num_microbatches = 4;
  return stage;
}

TEST(ShardedStage, AReductionHidesBehindTheNextLayer) {
  // A reduction of 30 s outlasts the next layer's backward pass by 10 s, and so delays the layer after that. The last
  // two reductions overlap with the next micro-batch's F.
  const StageWaits waits = wait_for_shares(some_stage(0, 30));
  EXPECT_EQ(waits.forward, 0);
  EXPECT_EQ(waits.backward_input, 8 * 10);
  EXPECT_EQ(waits.first, 0);
  EXPECT_EQ(waits.left, 30 + 10);
  const StageWaits hidden = wait_for_shares(some_stage(0, 20));
  EXPECT_EQ(hidden.total(), 0);
  EXPECT_EQ(hidden.left, 20);
}

TEST(ShardedStage, AGatherHidesBehindTheLayerBefore) {
  // A gather overlaps with 10 s of a layer in F and 20 s in B, also across passes. The last layer stays gathered from F
  // to B, the first from B to the next F, where the second layer's gather overlaps with a layer's B. Nothing overlaps
  // with the first gather of the step.
  const StageWaits waits = wait_for_shares(some_stage(12, 0));
  EXPECT_EQ(waits.forward, 8 * 2);
  EXPECT_EQ(waits.backward_input, 0);
  EXPECT_EQ(waits.first, 12 + 2);
  EXPECT_EQ(waits.left, 0);
}

TEST(ShardedStage, GathersAndReductionsTakeTurns) {
  // From the third layer of B on, a reduction and a gather together exceed a layer's 20 s by 4 s. The next F begins
  // with the first layer, which is still gathered. Its reduction delays the third layer's gather, which ends 18 s after
  // the 10 s of the second layer.
  const StageWaits waits = wait_for_shares(some_stage(12, 12));
  EXPECT_EQ(waits.backward_input, 8 * 4);
  EXPECT_EQ(waits.forward, (18 - 10) + 7 * 2);
  EXPECT_EQ(waits.left, 12);
}

TEST(ShardedStage, WeightsThatStayAreGatheredOnceAStep) {
  ShardedStage stage = some_stage(12, 0);
  stage.reshards = false;
  StageWaits waits = wait_for_shares(stage);
  EXPECT_EQ(waits.total(), 0);
  EXPECT_EQ(waits.first, 12 + 9 * 2);
  stage.is_first = false;  // its first gather ends before its first input arrives
  EXPECT_EQ(wait_for_shares(stage).first, 9 * 2);
}

// As in FSDP2, weights are kept from F to B and gathered again for the next micro-batch.
TEST(ShardedStage, WeightsThatABackwardPassFreesAreGatheredForEveryMicroBatch) {
  ShardedStage stage = some_stage(3, 0);
  stage.overlaps = false;
  stage.head = {.forward = 0, .backward_input = 5, .backward_weight = 5, .gather = 15, .reduce = 0};
  stage.embedding = {.forward = 1, .backward_input = 1, .backward_weight = 1, .gather = 5, .reduce = 0};
  stage.reshards = false;
  EXPECT_EQ(wait_for_shares(stage).total(), 0);
  stage.frees_after_backward = true;
  EXPECT_EQ(wait_for_shares(stage).total(), 5 + 10 * 3 + 15);
  EXPECT_EQ(wait_for_shares(stage).first, 0);
  stage.reshards = true;
  EXPECT_EQ(wait_for_shares(stage).total(), 5 + 10 * 3 + 15 + 10 * 3);
}

TEST(ShardedStage, EmbeddingAndHeadAreUsedOnceEach) {
  ShardedStage stage = some_stage(10, 0);
  stage.embedding = {.forward = 1, .backward_input = 1, .backward_weight = 1, .gather = 5, .reduce = 0};
  stage.head = {.forward = 0, .backward_input = 5, .backward_weight = 5, .gather = 15, .reduce = 0};
  const StageWaits waits = wait_for_shares(stage);
  EXPECT_EQ(waits.forward, 10 - 1);          // the first layer's weights; their gather overlaps with the embedding
  EXPECT_EQ(waits.backward_input, 15 - 10);  // the head's weights; their gather overlaps with the last layer
  EXPECT_EQ(waits.first, 5);                 // the embedding's weights, at the start
}

TEST(ShardedStage, DeferredWeightGradientsReduceBehindOneAnother) {
  ShardedStage stage = some_stage(0, 14);
  stage.schedule = PipelineSchedule::zb_h1;
  stage.defers_weight_gradients = true;
  const StageWaits waits = wait_for_shares(stage);
  EXPECT_EQ(waits.backward_input, 0);
  EXPECT_EQ(waits.backward_weight, 8 * 4);
  EXPECT_EQ(waits.left, 14 + 4);
}

TEST(ShardedStage, PassesOfOneKindFollowEachOtherInGpipe) {
  ShardedStage stage = some_stage(12, 0);
  stage.schedule = PipelineSchedule::gpipe;
  const StageWaits waits = wait_for_shares(stage);
  EXPECT_EQ(waits.forward, 10 * 2);
  EXPECT_EQ(waits.backward_input, 0);
  EXPECT_EQ(waits.first, 12 - 2);  // the first gather; the first layer of B is still gathered
}

TEST(ShardedStage, WithoutOverlapEveryByteIsWaitedFor) {
  ShardedStage stage = some_stage(3, 4);
  stage.overlaps = false;
  StageWaits waits = wait_for_shares(stage);
  EXPECT_EQ(waits.forward, 9 * 3);  // the first layer is still gathered
  EXPECT_EQ(waits.backward_input, 9 * 3 + 10 * 4);
  EXPECT_EQ(waits.first, 3);
  EXPECT_EQ(waits.left, 0);
  stage.reshards = false;
  waits = wait_for_shares(stage);
  EXPECT_EQ(waits.total(), 10 * 4);
  EXPECT_EQ(waits.first, 10 * 3);
}

}  // namespace
}  // namespace copus
