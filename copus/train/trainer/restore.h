// Continues from a checkpoint.
#pragma once

#include "copus/checkpoint/checkpoint.h"
#include "copus/train/optimizer/update_rule.h"
#include "copus/train/trainer/rank_training.h"

namespace copus {

// Fills the state of this rank from a checkpoint, as Trainer::restore. `rule`: of the optimizer.
void restore_training(const Checkpoint& checkpoint, bool takes_new_data, const UpdateRule& rule,
                      RankTraining& training);

}  // namespace copus
