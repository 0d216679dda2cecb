// How long a step of a configuration takes on a cluster, part by part.
#pragma once

#include <cstdint>
#include <memory>

#include "copus/description/cluster_description.h"
#include "copus/description/model_description.h"
#include "copus/description/parallel_strategy.h"
#include "copus/performance/training_system.h"

namespace copus {

// Seconds of one step; they add up to it.
struct StepTimeParts {
  double compute = 0;               // of the busiest pipeline rank: its F, B and W without communication
  double tensor_communication = 0;  // tensor-parallel collectives of that rank that nothing hides
  double bubble = 0;                // the pipeline's idle time, messages between stages included
  double data_communication = 0;    // reduction of gradients and gathering of weights beyond what overlaps
  double optimizer = 0;

  double total() const { return compute + tensor_communication + bubble + data_communication + optimizer; }
  bool operator==(const StepTimeParts&) const = default;
};

// Remembers what configurations have in common, so that a table of many is quick. For one thread.
class StepTimeModel {
 public:
  StepTimeModel(const ModelDescription& model, int64_t sequence_length, const ClusterDescription& cluster,
                const TrainingSystem& system);
  ~StepTimeModel();

  // Of a configuration that infeasible_reason allows.
  StepTimeParts predict(const Configuration& configuration);

 private:
  struct Memo;
  std::unique_ptr<Memo> memo_;
};

// Tokens per second and rank: B_g * sequence_length / (seconds * world size).
double tokens_per_second_per_rank(const Configuration& configuration, int64_t sequence_length, double step_seconds);

// Model FLOPs utilization: training_flops_per_token x tokens per second and rank / peak (dense; PaLM, Chowdhery et al.
// 2022, appendix B). NaN where the peak is not known.
double model_flops_utilization(const ModelDescription& model, int64_t sequence_length,
                               double tokens_per_second_per_rank, double peak_flops_per_second);

}  // namespace copus
