#include "copus/train/rank_model.h"

#include "copus/model/precision.h"

namespace copus {

RankModel::RankModel(const RunConfig& config, const ParallelStrategy& strategy, World& world, StepRecorder& recorder,
                     const std::vector<BucketState>& state)
    : groups(world, strategy, recorder),
      parameters(config.model, compute_dtype(config.execution.precision),
                 place(config.model, strategy, config.train.sequence_length, world.rank()), state),
      executor(parameters, groups),
      probe(parameters, groups, recorder),
      reduction(parameters, groups, probe),
      optimizer(make_optimizer(parameters, config.optimizer, state)) {}

void RankModel::publish_weights() {
  parameters.publish_weights();
  gather_weights(parameters, groups);
}

}  // namespace copus
