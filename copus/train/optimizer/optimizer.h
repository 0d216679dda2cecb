// The common interface of optimizers: an optimizer keeps slots for every parameter and uses them to update the flat
// buckets of a ParameterStore. It updates all elements of a bucket, or with ZeRO this rank's shard.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "copus/base/numbers/exact_sum.h"
#include "copus/config/job_config.h"
#include "copus/model/memory/parameters.h"
#include "copus/placement/placed_tensors.h"
#include "copus/train/optimizer/gradient_ranges.h"
#include "copus/train/optimizer/update_journal.h"
#include "copus/train/optimizer/update_rule.h"

namespace copus {

// Elements that are updated in one call. The tensors are flat and of equal length, and are views of the rank's state.
struct UpdatedElements {
  // The parameter, if the tensors hold all of one parameter. Null if they hold parts of several parameters, which is
  // possible with an optimizer whose slots may be split between any two elements.
  const Parameter* parameter = nullptr;
  at::Tensor master, gradient;
  std::vector<at::Tensor> slots;
  bool decays = false;  // whether weight decay applies: to embeddings and linear weights, not to norms and biases
  bool are_hidden_matrices = false;  // whether they are parts of hidden matrices only (is_hidden_matrix), or of none
};

class Optimizer {
 public:
  Optimizer(const Optimizer&) = delete;
  Optimizer& operator=(const Optimizer&) = delete;
  virtual ~Optimizer() = default;

  // This rank's part of the squared norm of the whole model's gradient. The sum over all ranks counts every logical
  // element once in any layout. Layouts with the same bucket boundaries give the same bits. Waits for the device.
  ExactSum squared_gradient_norm() const;

  // Makes the next update: computes the master weights from gradient_factor * gradient and derives the compute weights
  // from them (publish_weights). With ZeRO-1 and 2 the weights then have to be gathered. With a `journal` it changes
  // the state piece by piece, to the same bits. If the journal's process died within this update, it continues the
  // update.
  void step(const WeightUpdate& update, UpdateJournal* journal = nullptr);

  // Discards the directions of an update that is not made, because the ranks have not agreed on its step. Does nothing
  // for optimizers that compute an update from single elements.
  virtual void discard_directions() {}

  // Number of updates made so far.
  int64_t steps() const { return steps_; }
  void set_steps(int64_t steps) { steps_ = steps; }

  const std::vector<OptimizerSlot>& slots() const { return slots_; }
  size_t num_slots() const { return slots_.size(); }
  // A slot's tensors by bucket: flat, of the master dtype, laid out like the bucket's master weights. Undefined for
  // buckets whose master weights are undefined.
  const std::vector<at::Tensor>& slot_tensors(size_t index) const { return tensors_.at(index); }

 protected:
  // Calls visit(UpdatedElements) for the elements of hidden matrices that this rank updates.
  template <class Visit>
  void for_hidden_matrices(const Visit& visit) const {
    for (const UpdateRange& range : update_ranges_) {
      if (range.are_hidden_matrices) visit(elements_of(range));
    }
  }

  // Uses the slots in `state`, the state of the buckets of `parameters`, and shares their tensors. Keeps a reference to
  // `parameters`.
  Optimizer(ParameterStore& parameters, std::vector<OptimizerSlot> slots, const std::vector<BucketState>& state);

 private:
  // A range of elements that are updated alike.
  struct UpdateRange : GradientRange {
    bool decays, are_hidden_matrices;
    const Parameter* parameter;
  };

  // Updates the elements in place. The result does not depend on how the elements are split between calls. Callers
  // never split a slot's unit.
  virtual void change(const UpdatedElements& elements, const WeightUpdate& update) const = 0;

  UpdatedElements elements_of(const UpdateRange& range) const;
  void add_update_ranges(int64_t bucket);
  void add_norm_ranges(int64_t bucket);

  ParameterStore& parameters_;
  const std::vector<OptimizerSlot> slots_;
  const bool cuts_anywhere_;                      // whether the unit of every slot is a single element
  std::vector<std::vector<at::Tensor>> tensors_;  // by slot, then by bucket
  std::vector<UpdateRange> update_ranges_;
  std::vector<GradientRange> norm_ranges_;  // ranges that this rank counts in the norm
  int64_t steps_ = 0;
};

// The training state of this optimizer with weights of this type. Master weights of fp64, which tests use, count as
// fp32.
StateRecipe training_recipe(const OptimizerConfig& config, at::ScalarType compute_dtype);

// Size in bytes of a rank's journal of updates.
int64_t journal_bytes(const OptimizerConfig& config, const ModelDescription& model);

// Makes the optimizer of this configuration. See the constructor of Optimizer.
std::unique_ptr<Optimizer> make_optimizer(ParameterStore& parameters, const OptimizerConfig& config,
                                          const std::vector<BucketState>& state);

// The tensors of a rank's whole state by bucket, shared with the parameters and the optimizer.
std::vector<BucketState> state_of(const ParameterStore& parameters, const Optimizer& optimizer);

// The factor that scales a gradient of this norm down to clip_norm; 1 if the norm is not larger, or clip_norm is 0.
double clip_factor(double gradient_norm, double clip_norm);

}  // namespace copus
