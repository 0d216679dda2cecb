// Sends training state from the ranks that hold it to the ranks that write it into a checkpoint. Tensors travel in
// pieces, so that a rank needs memory for only a few pieces in addition to its state.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>

#include "copus/checkpoint/checkpoint_plan.h"
#include "copus/train/step/rank_model.h"

namespace copus {

// Takes the next bytes of the tensors that this rank writes, in the order of CheckpointPlan::tensors_of. A call never
// spans two tensors.
using TensorSink = std::function<void(std::span<const std::byte>)>;

// Returns the bytes of a piece. Each of `num_writers` writers takes one piece at a time. Together these pieces need
// about as much memory as a bucket of a large model. Each piece is large enough to keep the number of messages low.
int64_t piece_bytes(int64_t num_writers);

// Plans the checkpoint of a model in its current layout.
CheckpointPlan plan_checkpoint_of(const RankModel& model, const CheckpointLimits& limits = {});

// Sends all state to the writers of `plan`, whose tensors come from list_checkpoint_tensors. Every rank calls it. In
// addition to the state, a writer needs memory for two pieces, and a rank whose state is on a device for one more piece
// per writer. Tensors that files fuse or transpose are assembled whole.
void hand_over_state(RankModel& model, const CheckpointPlan& plan, const TensorSink& sink);

}  // namespace copus
