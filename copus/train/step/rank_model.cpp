#include "copus/train/step/rank_model.h"

#include <cmath>

#include "copus/model/kernels/precision.h"
#include "copus/train/step/step_agreement.h"

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
      optimizer(make_optimizer(parameters, config.optimizer, state)) {
  if (needs_whole_matrices(config.optimizer.kind)) {
    orthogonalization.emplace(parameters, config.optimizer, *optimizer, groups);
  }
}

void RankModel::prepare_update(const ExactSum& squared_norm, double clip_norm) {
  if (!orthogonalization) return;
  const double norm = std::sqrt(agree_on_squared_norm(squared_norm, groups.everyone()));
  if (std::isfinite(norm)) orthogonalization->run(clip_factor(norm, clip_norm));
}

void RankModel::publish_weights() {
  parameters.publish_weights();
  gather_weights();
}

void RankModel::gather_weights() {
  weights.start();
  weights.finish();
}

}  // namespace copus
