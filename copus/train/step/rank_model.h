// Model, groups and optimizer of one rank of a layout: all objects that a change of layout replaces.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "copus/comm/world.h"
#include "copus/config/run_config.h"
#include "copus/description/parallel_strategy.h"
#include "copus/model/memory/parameters.h"
#include "copus/model/memory/state_memory.h"
#include "copus/train/optimizer/optimizer.h"
#include "copus/train/recording/step_recorder.h"
#include "copus/train/step/dual_norms.h"
#include "copus/train/step/gathered_weights.h"
#include "copus/train/step/gradient_probe.h"
#include "copus/train/step/gradient_reduction.h"
#include "copus/train/step/matrix_exchange.h"
#include "copus/train/step/orthogonalization.h"
#include "copus/train/step/pipeline_executor.h"
#include "copus/train/step/rank_groups.h"

namespace copus {

// One rank's model. Neither copyable nor movable, because its members refer to each other.
class RankModel {
 public:
  // Takes `state`, the state of this rank's buckets in the layout, including gradients. Everything except the layout
  // comes from `config`. `world` and `recorder` must outlive this object.
  RankModel(const RunConfig& config, const ParallelStrategy& strategy, World& world, StepRecorder& recorder,
            const std::vector<BucketState>& state);
  RankModel(const RankModel&) = delete;
  RankModel& operator=(const RankModel&) = delete;

  const ParallelStrategy& strategy() const { return parameters.placement().strategy; }

  // Returns this rank's state; shares the tensors.
  std::vector<BucketState> state() const { return state_of(parameters, *optimizer); }

  // Turns changed master weights into the compute weights of all data-parallel ranks. All of these ranks call it.
  void publish_weights();
  // Like publish_weights(), if this rank's compute weights have already been derived from its master weights.
  void gather_weights();

  // Begins step `step` (from 1): sets the gradients to zero.
  void begin_gradients(const ProbePlan& plan, int64_t step);

  // Computes what needs unsharded matrices, before the ranks agree on the step: the directions of the update, if the
  // optimizer has any, and the dual norms, if `plan` measures them. Returns the dual norms. `squared_norm`: this rank's
  // part of the squared norm of the gradient. Every rank calls it. Once all ranks have agreed on the step, all have
  // their directions; on a GPU the work may still be queued.
  std::optional<DualNormsOfStep> prepare_update(const ExactSum& squared_norm, const ProbePlan& plan, int64_t step,
                                                int64_t global_batch);

  RankGroups groups;
  ParameterStore parameters;
  GatheredWeights weights;
  PipelineExecutor executor;
  GradientProbe probe;
  GradientReduction reduction;
  const std::unique_ptr<Optimizer> optimizer;

 private:
  std::optional<MatrixExchange> exchange_;              // if exchanges_matrices()
  std::optional<Orthogonalization> orthogonalization_;  // for optimizers that need unsharded matrices
  std::optional<DualMeasurement> dual_;                 // if noise in dual norms is measured
  const int64_t dual_interval_;
  const double clip_norm_;
};

}  // namespace copus
