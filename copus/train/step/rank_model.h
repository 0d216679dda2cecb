// Model, groups and optimizer of one rank of a layout: all objects that are replaced as a whole when the layout
// changes.
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
#include "copus/train/step/gathered_weights.h"
#include "copus/train/step/gradient_probe.h"
#include "copus/train/step/gradient_reduction.h"
#include "copus/train/step/orthogonalization.h"
#include "copus/train/step/pipeline_executor.h"
#include "copus/train/step/rank_groups.h"

namespace copus {

// The model of one rank. Its members refer to each other, so it is neither copied nor moved.
class RankModel {
 public:
  // Takes `state`, the state of this rank's buckets in the layout, including gradients. Apart from the layout, `config`
  // determines everything. Keeps references to `world` and `recorder`.
  RankModel(const RunConfig& config, const ParallelStrategy& strategy, World& world, StepRecorder& recorder,
            const std::vector<BucketState>& state);
  RankModel(const RankModel&) = delete;
  RankModel& operator=(const RankModel&) = delete;

  const ParallelStrategy& strategy() const { return parameters.placement().strategy; }

  // The tensors of this rank's state, shared.
  std::vector<BucketState> state() const { return state_of(parameters, *optimizer); }

  // Publishes changed master weights as the compute weights of all data-parallel ranks, all of which call it.
  void publish_weights();
  // Computes the part of the next update that needs whole matrices, if the optimizer has one. `squared_norm`: this
  // rank's part of the squared norm of the gradient, which is clipped to clip_norm. Every rank calls it.
  void prepare_update(const ExactSum& squared_norm, double clip_norm);

  // Like publish_weights(), if this rank has already derived its compute weights from its master weights.
  void gather_weights();

  RankGroups groups;
  ParameterStore parameters;
  GatheredWeights weights;
  PipelineExecutor executor;
  GradientProbe probe;
  GradientReduction reduction;
  const std::unique_ptr<Optimizer> optimizer;
  std::optional<Orthogonalization> orthogonalization;  // only for optimizers that need whole matrices
};

}  // namespace copus
