// The seconds for which a pipeline stage waits for its data-parallel communicator where gradients are shared out
// (ZeRO-2), or weights too (ZeRO-3): every micro-batch reduces each bucket, and each pass gathers the weights it uses.
#pragma once

#include <cstdint>

#include "copus/description/parallel_strategy.h"

namespace copus {

// Seconds of a block of a stage, which is a bucket: its passes over one micro-batch, and its collectives. A block that
// a stage does not have takes none.
struct BucketSeconds {
  double forward = 0, backward_input = 0, backward_weight = 0;
  double gather = 0;  // 0: the weights stay whole
  double reduce = 0;
};

struct ShardedStage {
  BucketSeconds embedding, layer, head;
  int64_t num_layers = 0;
  PipelineSchedule schedule = PipelineSchedule::one_f_one_b;
  bool defers_weight_gradients = false;  // whether W is a pass of its own, which then reduces
  bool reshards = true;               // whether a pass frees the weights behind it; if not, a step gathers them once,
  bool frees_after_backward = false;  // or every micro-batch, where its backward pass frees them (not in gpipe)
  bool is_first = true;               // others gather their first weights while they wait for their first input
  bool overlaps = true;               // whether anything goes on beside computing
  int64_t num_microbatches = 1;
};

struct StageWaits {
  // Seconds in the passes of one micro-batch among many.
  double forward = 0, backward_input = 0, backward_weight = 0;
  double first = 0;  // how much more the first micro-batch waits than another; less than 0 where it waits less
  double left = 0;   // what the communicator has still to do when the stage's last pass has ended

  double total() const { return forward + backward_input + backward_weight; }
};

// Replays two micro-batches. F uses the weights of the embedding and of each layer, B those of the head and of each
// layer, from the last to the first; the backward pass of the embedding and W use none. When a use begins, the gather
// of the next one starts, across passes too; when a block's gradient is complete, its reduction starts, and until that
// is done only one other block's gradient can be there. The communicator works in the order of starts. Other stages of
// the same rank are taken to have no part in it.
StageWaits wait_for_shares(const ShardedStage& stage);

}  // namespace copus
