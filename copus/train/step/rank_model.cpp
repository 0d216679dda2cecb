#include "copus/train/step/rank_model.h"

#include "copus/model/kernels/precision.h"

namespace copus {

RankModel::RankModel(const RunConfig& config, const ParallelStrategy& strategy, World& world, StepRecorder& recorder,
                     const std::vector<BucketState>& state)
    : groups(world, strategy, recorder),
      parameters(config.model, compute_dtype(config.execution.precision),
                 place(config.model, strategy, config.train.sequence_length, world.rank()), state),
      weights(parameters, groups, recorder),
      executor(parameters, groups, weights),
      probe(parameters, groups, recorder),
      reduction(parameters, groups, probe),
      optimizer(make_optimizer(parameters, config.optimizer, state)) {}

void RankModel::publish_weights() {
  parameters.publish_weights();
  gather_weights();
}

void RankModel::gather_weights() {
  weights.start();
  weights.finish();
}

}  // namespace copus
