// The seconds for which a pipeline stage waits for its data-parallel communicator if gradients (ZeRO-2) or also weights
// (ZeRO-3) are sharded: every micro-batch reduces each bucket, and each pass gathers the weights that it uses.
#pragma once

#include <cstdint>
#include <vector>

#include "copus/description/parallel_strategy.h"

namespace copus {

// Seconds of a block of a stage, which is a bucket: its passes over one micro-batch, and its collectives. All are 0 for
// blocks that a stage does not have.
struct BucketSeconds {
  double forward = 0, backward_input = 0, backward_weight = 0;
  double gather = 0;  // 0 if the weights stay whole
  double reduce = 0;
};

struct ShardedStage {
  BucketSeconds embedding, head;
  std::vector<BucketSeconds> layers = {};
  PipelineSchedule schedule = PipelineSchedule::one_f_one_b;
  bool defers_weight_gradients = false;  // whether W is a separate pass, which then reduces
  bool reshards = true;                  // whether a pass frees its weights; if not, a step gathers them once
  bool frees_after_backward = false;     // with this, each micro-batch gathers them once (not in gpipe)
  bool is_first = true;  // other stages gather their first weights while they wait for their first input
  bool overlaps = true;  // whether communication overlaps with computation
  int64_t num_microbatches = 1;
};

struct StageWaits {
  // Seconds in the passes of one of many micro-batches.
  double forward = 0, backward_input = 0, backward_weight = 0;
  double first = 0;  // how much longer the first micro-batch waits than later ones; negative if it waits less
  double left = 0;   // the communicator's remaining work when the stage's last pass has ended

  double total() const { return forward + backward_input + backward_weight; }
};

// Replays two micro-batches. F uses the weights of the embedding and of each layer. B uses the weights of the head and
// of each layer, from the last layer to the first. W and the embedding's backward pass use none. When a use begins, the
// gather of the next one starts, also across passes. When a block's gradient is complete, its reduction starts; until
// that is done, only one other block's gradient can exist. The communicator works in the order of starts. Other stages
// of the same rank are ignored.
StageWaits wait_for_shares(const ShardedStage& stage);

}  // namespace copus
