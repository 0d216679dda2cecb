// The gradients of a step: which samples a rank reads, and how it computes their gradients.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <vector>

#include "copus/base/numbers/exact_sum.h"
#include "copus/data/dataset.h"
#include "copus/model/layers/model_chunk.h"
#include "copus/schedule/schedule.h"
#include "copus/train/step/probe_plan.h"
#include "copus/train/step/step_agreement.h"
#include "copus/train/trainer/rank_training.h"

namespace copus {

// A rank's results of a step before the ranks agree, besides the main gradients: the losses of its micro-batches, as
// the executor returns them, and the squared norms of the gradients of smaller batches.
struct StepGradients {
  std::vector<at::Tensor> losses;
  ExactSum small_squared_norms;
};

class GradientSource {
 public:
  virtual ~GradientSource() = default;

  // Adds the gradient of the summed token losses of the global batch, times `loss_scale`, to the main gradients, which
  // must be zero. Every rank calls it.
  virtual StepGradients compute(const ProbePlan& plan, double loss_scale) = 0;

  // On the modelled clock, replaces the measured seconds of a step by the model's.
  virtual void set_seconds(StepAgreement& /*agreed*/) {}
};

// Computes this rank's share of the global batch, and adds up the gradients of all ranks.
class SharedGradients : public GradientSource {
 public:
  // Keeps a reference to `training`.
  explicit SharedGradients(RankTraining& training) : training_(training) {}
  StepGradients compute(const ProbePlan& plan, double loss_scale) override;

 private:
  RankTraining& training_;
};

// The samples first .. of the data, as one micro-batch for each of `counts`.
std::vector<MicroBatch> read_micro_batches(const RankTraining& training, uint64_t first,
                                           const std::vector<int64_t>& counts, double loss_scale);

// Moves a batch of `sequences` sequences to the device.
MicroBatch to_micro_batch(const Batch& batch, int64_t sequences, double loss_scale, at::Device device);

// Runs the schedule of the executed layout for these micro-batches, and adds the gradients to the main gradients.
// Returns the losses, as PipelineExecutor::run. `source`: what the probe measures meanwhile.
at::Tensor run_schedule(const std::vector<MicroBatch>& micro_batches, ProbeSource source, RankTraining& training);

}  // namespace copus
