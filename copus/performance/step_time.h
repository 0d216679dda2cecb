// The predicted time of a configuration's step on a cluster, by part.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "copus/description/cluster_description.h"
#include "copus/description/model_description.h"
#include "copus/description/parallel_strategy.h"
#include "copus/performance/block_elements.h"
#include "copus/performance/block_time.h"
#include "copus/performance/link_cost.h"
#include "copus/performance/matrix_update.h"
#include "copus/performance/memory.h"
#include "copus/performance/pipeline_time.h"
#include "copus/performance/sharded_stage.h"
#include "copus/performance/training_system.h"

namespace copus {

// The parts of a step's seconds; their sum is the whole.
struct StepTimeParts {
  double compute = 0;               // F, B and W of the busiest pipeline rank, without communication
  double tensor_communication = 0;  // that rank's exposed tensor-parallel collectives
  double bubble = 0;                // the pipeline's idle time, including messages between stages
  double data_communication = 0;    // reductions of gradients and gathers of weights that do not overlap with
                                    // computation: within passes (of that rank, with ZeRO-2 and 3) and outside of them
  double optimizer = 0;

  double total() const { return compute + tensor_communication + bubble + data_communication + optimizer; }
  bool operator==(const StepTimeParts&) const = default;
};

// Calls visit(name, seconds) for every part; names are those in JSON files.
template <class Parts, class Visitor>
void visit_parts(Parts& parts, Visitor&& visit) {
  visit("compute", parts.compute);
  visit("tensor_communication", parts.tensor_communication);
  visit("bubble", parts.bubble);
  visit("data_communication", parts.data_communication);
  visit("optimizer", parts.optimizer);
}

// Predicts step times. Caches what configurations share, so that large tables take little time. Not thread-safe.
class StepTimeModel {
 public:
  // The cluster's speed must be known (is_speed_known).
  StepTimeModel(const ModelDescription& model, int64_t sequence_length, const ClusterDescription& cluster,
                const TrainingSystem& system);

  // `configuration` must be one that infeasible_reason allows.
  StepTimeParts predict(const Configuration& configuration);

 private:
  struct Stages;
  // The seconds of a bucket's collectives over data-parallel ranks.
  struct BucketCosts {
    struct Bucket {
      double reduce = 0;
      double gather = 0;           // of its weights
      double reduce_replicas = 0;  // of a share of its gradient, over the ranks with the same share
    };
    std::vector<Bucket> layers = {};       // by kind of layer
    Bucket embedding = {};                 // also for the head, which has as many elements
    std::vector<double> add_partial = {};  // partial gradients, over tensor-parallel neighbours; by kind of layer
  };
  const BlockCosts& blocks(const Configuration& configuration);
  const std::vector<LayerRange>& stages(int64_t num_stages);
  Stages cost_stages(const Configuration& configuration);
  void add_pipeline(const Configuration& configuration, const Stages& costs, StepTimeParts& parts);
  std::vector<StageWaits> wait_for_buckets(const Configuration& configuration, const Stages& costs);
  double data_communication(const Configuration& configuration, const Stages& costs);
  double add_partial_seconds(const ParallelStrategy& strategy, const LayerElements& layer);
  const BucketCosts& bucket_costs(const ParallelStrategy& strategy);
  BucketCosts cost_buckets(const ParallelStrategy& strategy);
  template <class Visitor>
  void visit_buckets(const ParallelStrategy& strategy, int64_t rank, const BucketCosts& buckets, Visitor&& visit);
  static bool defers_weight_gradients(const ParallelStrategy& strategy, int64_t rank);
  bool overlaps_reduction(const ParallelStrategy& strategy) const;
  bool reduces_tied_at_the_end(const Configuration& configuration) const;
  double bucket_communication(const Configuration& configuration, const Stages& costs);
  double end_of_step(const ParallelStrategy& strategy, const Stages& costs, const BucketCosts& buckets);
  double exposed_gathers(const ParallelStrategy& strategy, const Stages& costs, const BucketCosts& buckets);
  double shared_communication(const Configuration& configuration, const Stages& costs);
  double optimizer(const ParallelStrategy& strategy);
  MatrixUpdateSeconds matrix_update(const ParallelStrategy& strategy);
  double held_parameters(const ParallelStrategy& strategy, int64_t pipeline_rank);
  double agreement(const ParallelStrategy& strategy) const;
  double crowding(const Configuration& configuration);
  int64_t sharing_ranks(const ParallelStrategy& strategy) const;
  int64_t devices_per_rank(const ParallelStrategy& strategy) const;
  double ranks_per_device(const ParallelStrategy& strategy) const;
  double turns(const ParallelStrategy& strategy, int64_t count) const;
  double node_work(const ParallelStrategy& strategy, const std::vector<double>& busy) const;
  Link data_link(const ParallelStrategy& strategy, int64_t stride, int64_t count) const;
  Link stage_link(const ParallelStrategy& strategy, int64_t stage) const;

  ModelDescription model_;
  int64_t sequence_length_;
  ClusterDescription cluster_;
  TrainingSystem system_;
  LayerKinds kinds_;
  BlockCounter elements_;
  std::map<BlockShape, BlockCosts> blocks_;
  std::map<ParallelStrategy, BucketCosts> bucket_costs_;
  std::map<int64_t, std::vector<LayerRange>> stages_;                     // by number of stages
  std::map<std::array<int64_t, 5>, MatrixUpdateSeconds> matrix_updates_;  // by degrees, stages and optimizer shards
  PipelineTimes pipeline_times_;
  MemoryModel memory_;
};

// Returns tokens per second and rank: global batch * sequence_length / (seconds * world size).
double tokens_per_second_per_rank(const Configuration& configuration, int64_t sequence_length, double step_seconds);

// Returns the model FLOPs utilization: training_flops_per_token x tokens per second and rank / peak (dense; PaLM,
// Chowdhery et al. 2022, appendix B). NaN if the device's peak is unknown.
double model_flops_utilization(const ModelDescription& model, int64_t sequence_length,
                               double tokens_per_second_per_rank, double peak_flops_per_second);

}  // namespace copus
