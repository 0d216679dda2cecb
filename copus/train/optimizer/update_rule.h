// The part of a weight update that needs no tensors: its numbers, and how an optimizer adjusts them to the batch.
#pragma once

#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

#include "copus/config/job_config.h"
#include "copus/train/optimizer/optimizer_scalars.h"

namespace copus {

// One update of all weights, the same on all ranks.
struct WeightUpdate {
  int64_t number = 0;  // of the updates so far, this one included
  double learning_rate = 0;
  double gradient_factor = 1;      // from clipping (clip_factor)
  double weight_decay_factor = 1;  // not 1 if decay follows the batch
  OptimizerScalars scalars = {};   // the optimizer's scalars after this update
};

// Computes the scalars and factors of an optimizer's updates. By default they depend only on the learning rate. Batches
// are in samples.
class UpdateRule {
 public:
  virtual ~UpdateRule() = default;

  // Lists the names of the scalars that the optimizer may keep.
  virtual std::vector<std::string_view> scalar_names() const { return {}; }
  // Returns the scalars of a run that begins with this batch. The run keeps all of them from then on.
  virtual OptimizerScalars begin(double /*batch*/) const { return {}; }
  // Returns the scalars after one more update with this batch.
  virtual OptimizerScalars after_update(const OptimizerScalars& scalars, double /*batch*/) const { return scalars; }
  // Returns the optimizer's factor on the learning rate for the update that results in these scalars.
  virtual double rate_factor(const OptimizerScalars& /*after*/) const { return 1; }
};

// Makes the rule of the job's optimizer.
std::unique_ptr<const UpdateRule> make_update_rule(const JobConfig& config);

}  // namespace copus
