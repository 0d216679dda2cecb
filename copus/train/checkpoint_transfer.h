// The way of the training state from the ranks that hold it to the ranks that write it into a checkpoint: whole
// tensors, in pieces, so that no rank needs more memory beside its state than a few of these.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>

#include "copus/checkpoint/checkpoint_plan.h"
#include "copus/train/rank_model.h"

namespace copus {

// Takes the next bytes of the tensors that this rank writes, in the order of CheckpointPlan::tensors_of; never of two
// tensors at once.
using TensorSink = std::function<void(std::span<const std::byte>)>;

// Bytes of the piece that each of so many writers takes at a time: few enough that all of them together are about a
// bucket of a large model, and enough that messages are not many.
int64_t piece_bytes(int64_t num_writers);

// Plans the checkpoint of a model in its layout.
CheckpointPlan plan_checkpoint_of(const RankModel& model, const CheckpointLimits& limits = {});

// Moves all state to the writers of `plan`, whose tensors are those of list_checkpoint_tensors. Every rank calls it.
// Beside the state, a writer needs two pieces of memory, and a rank whose state is on a device one more for each
// writer. A tensor that files fuse or transpose is put together as a whole.
void hand_over_state(RankModel& model, const CheckpointPlan& plan, const TensorSink& sink);

}  // namespace copus
