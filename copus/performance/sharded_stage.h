// Computes how long a pipeline stage waits for data-parallel collectives if gradients (ZeRO-2) or also weights (ZeRO-3)
// are sharded. Every micro-batch then reduces each bucket, and each pass gathers the weights that it uses.
#pragma once

#include <cstdint>
#include <vector>

#include "copus/description/parallel_strategy.h"

namespace copus {

// Seconds of one block, which is a bucket: its passes over one micro-batch, and its collectives. All are 0 if the stage
// does not have the block.
struct BucketSeconds {
  double forward = 0, backward_input = 0, backward_weight = 0;
  double gather = 0;  // 0 if the weights stay unsharded
  double reduce = 0;
};

struct ShardedStage {
  BucketSeconds embedding, head;
  std::vector<BucketSeconds> layers = {};
  PipelineSchedule schedule = PipelineSchedule::one_f_one_b;
  bool defers_weight_gradients = false;  // whether W is a separate pass, after which gradients are reduced
  bool reshards = true;                  // whether passes free gathered weights; otherwise gathered once a step
  bool frees_after_backward = false;     // whether B frees them: gathered once per micro-batch (not in gpipe)
  bool is_first = true;                  // the first stage; others gather their first weights while they wait for input
  bool overlaps = true;                  // whether communication overlaps with computation
  int64_t num_microbatches = 1;
};

struct StageWaits {
  // Seconds of waiting in each pass, for any micro-batch but the first.
  double forward = 0, backward_input = 0, backward_weight = 0;
  double first = 0;  // additional wait of the first micro-batch; may be negative
  double left = 0;   // seconds of communication left when the stage's last pass ends

  double total() const { return forward + backward_input + backward_weight; }
};

// Replays two micro-batches. F uses the weights of the embedding and of each layer. B uses the weights of the head and
// of the layers, from last to first. W and the embedding's backward pass use none. When a use begins, the gather for
// the next one starts, also across passes. When a block's gradient is complete, its reduction starts; until it ends,
// only one other block's gradient can exist. Collectives run one at a time, in the order of their starts. Other stages
// on the same rank are ignored.
StageWaits wait_for_shares(const ShardedStage& stage);

}  // namespace copus
