// The part of a weight update that needs no tensors: its numbers, and how an optimizer lets them follow the batch.
#pragma once

#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

#include "copus/config/job_config.h"
#include "copus/train/optimizer_scalars.h"

namespace copus {

// One update of all weights, alike on all ranks.
struct WeightUpdate {
  int64_t number = 0;  // of the updates so far, this one included
  double learning_rate = 0;
  double gradient_factor = 1;      // that of clipping (clip_factor)
  double weight_decay_factor = 1;  // where decay follows the batch
  OptimizerScalars scalars = {};   // those of the optimizer after this update
};

// An optimizer's part in the numbers of its updates. By default they depend on the learning rate only. Batches are in
// samples.
class UpdateRule {
 public:
  virtual ~UpdateRule() = default;

  // Lists the names of the scalars that the optimizer may keep.
  virtual std::vector<std::string_view> scalar_names() const { return {}; }
  // Returns the scalars of a run that begins in a batch of `batch`. It keeps all of them from then on.
  virtual OptimizerScalars begin(double /*batch*/) const { return {}; }
  // Returns the scalars after one more update, in a batch of `batch`.
  virtual OptimizerScalars after_update(const OptimizerScalars& scalars, double /*batch*/) const { return scalars; }
  // Returns the optimizer's factor on the learning rate of the update that leaves these scalars.
  virtual double rate_factor(const OptimizerScalars& /*after*/) const { return 1; }
};

// Makes the rule of the job's optimizer.
std::unique_ptr<const UpdateRule> make_update_rule(const JobConfig& config);

}  // namespace copus
