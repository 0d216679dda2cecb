// The held-out loss of a rank's model.
#pragma once

#include <cstdint>
#include <optional>

#include "copus/record/step_record.h"
#include "copus/train/trainer/rank_training.h"

namespace copus {

// The number of held-out samples that an evaluation reads.
int64_t samples_of_evaluation(const RunConfig& config, const Dataset& dataset);

// Returns the mean held-out loss per token, in nats. All ranks get the same value, and so do all layouts of equal
// tensor parallelism. Reads at most evaluate.max_batches micro-batches of the size in the run's configuration
// (Dataset::held_out_parts). Empty without held-out data, or if there was a reason to stop, which is checked before
// every round of micro-batches.
std::optional<HeldOutLoss> evaluate_held_out(RankTraining& training, const StopQuestion& stop);

}  // namespace copus
