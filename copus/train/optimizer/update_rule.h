// The numbers of a weight update, without tensors, and how an optimizer adapts them to the batch.
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
  int64_t number = 0;  // counts updates from 1
  double learning_rate = 0;
  double gradient_factor = 1;      // for clipping (clip_factor)
  double weight_decay_factor = 1;  // not 1 if weight decay follows the batch
  OptimizerScalars scalars = {};   // the optimizer's scalars after this update
};

// Computes the scalars and factors of an optimizer's updates; by default there are none. Batches are in samples.
class UpdateRule {
 public:
  virtual ~UpdateRule() = default;

  // Lists the names of all scalars that the optimizer may keep.
  virtual std::vector<std::string_view> scalar_names() const { return {}; }
  // Returns the scalars of a run that begins with this batch. Later updates keep the same set of scalars.
  virtual OptimizerScalars begin(double /*batch*/) const { return {}; }
  // Returns the scalars after one more update with this batch.
  virtual OptimizerScalars after_update(const OptimizerScalars& scalars, double /*batch*/) const { return scalars; }
  // Returns the optimizer's factor on the learning rate of the update that has led to these scalars.
  virtual double rate_factor(const OptimizerScalars& /*after*/) const { return 1; }
};

// Makes the rule of the job's optimizer.
std::unique_ptr<const UpdateRule> make_update_rule(const JobConfig& config);

}  // namespace copus
