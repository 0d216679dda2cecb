// Sends the training state from the ranks that hold it to the ranks that write it into a checkpoint. Whole tensors
// travel in pieces, so that a rank needs memory for only a few pieces in addition to its state.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>

#include "copus/checkpoint/checkpoint_plan.h"
#include "copus/train/step/rank_model.h"

namespace copus {

// Takes the next bytes of the tensors that this rank writes, in the order of CheckpointPlan::tensors_of. One call never
// spans two tensors.
using TensorSink = std::function<void(std::span<const std::byte>)>;

// Size in bytes of the piece that each of `num_writers` writers takes at a time. Together the pieces are about one
// bucket of a large model, and each is large enough to keep the number of messages low.
int64_t piece_bytes(int64_t num_writers);

// Plans the checkpoint of a model in its current layout.
CheckpointPlan plan_checkpoint_of(const RankModel& model, const CheckpointLimits& limits = {});

// Moves all state to the writers of `plan`, whose tensors come from list_checkpoint_tensors. Every rank calls it. In
// addition to the state, a writer needs memory for two pieces. A rank whose state is on a device needs memory for one
// more piece per writer. Tensors that files fuse or transpose are assembled as a whole.
void hand_over_state(RankModel& model, const CheckpointPlan& plan, const TensorSink& sink);

}  // namespace copus
