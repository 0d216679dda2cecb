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
      optimizer(make_optimizer(parameters, config.optimizer, state)),
      dual_interval_(config.noise_scale.dual_interval),
      clip_norm_(config.train.clip_norm) {
  if (exchanges_matrices(config)) exchange_.emplace(parameters, groups);
  if (needs_whole_matrices(config.optimizer.kind)) {
    orthogonalization_.emplace(parameters, config.optimizer, *optimizer, *exchange_);
  }
  if (dual_interval_ > 0) dual_.emplace(parameters, config.optimizer, *optimizer, *exchange_);
}

void RankModel::begin_gradients(const ProbePlan& plan, int64_t step) {
  parameters.zero_gradients();
  const bool is_measured =
      plan.measures_dual_norms && optimizer->steps() > 0;  // the first update has no second moments yet
  probe.keep(is_measured ? dual_->parameters_of(step / dual_interval_) : std::vector<int64_t>());
}

std::optional<DualNormsOfStep> RankModel::prepare_update(const ExactSum& squared_norm, const ProbePlan& plan,
                                                         int64_t step, int64_t global_batch) {
  const bool is_measured = plan.measures_dual_norms && optimizer->steps() > 0;
  if (!orthogonalization_ && !is_measured) return std::nullopt;
  const double norm = std::sqrt(agree_on_sums({&squared_norm, 1}, groups.everyone()).front());
  if (!std::isfinite(norm)) return std::nullopt;
  const double factor = clip_factor(norm, clip_norm_);
  std::optional<DualNormsOfStep> measured;
  if (is_measured) {
    const auto part =
        static_cast<double>(plan.small_batch * GradientProbe::ranks_kept(plan.source, groups.data().size()));
    const auto sums =
        dual_->measure(step / dual_interval_, probe.take_kept(), part / static_cast<double>(global_batch), factor);
    measured = dual_->norms_from(agree_on_sums(sums, groups.everyone()));
    measured->part = part;
  }
  if (orthogonalization_) orthogonalization_->run(factor);
  return measured;
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
