// The interface of optimizers. An optimizer keeps slots for every parameter, and updates the flat buckets of a
// ParameterStore: unsharded buckets, or with ZeRO this rank's shards.
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

// The elements of one call of change(). All tensors are flat, of equal length, and views of the rank's state.
struct UpdatedElements {
  // The parameter, if the tensors are all of one parameter. Otherwise null: the tensors are parts of several
  // parameters, which only happens if slots may be split at any element.
  const Parameter* parameter = nullptr;
  at::Tensor master, gradient;
  std::vector<at::Tensor> slots;
  bool decays = false;  // whether weight decay applies (to embeddings and linear weights, not to norms and biases)
  bool are_hidden_matrices = false;  // whether all elements, or none, are of hidden matrices (is_hidden_matrix)
};

class Optimizer {
 public:
  Optimizer(const Optimizer&) = delete;
  Optimizer& operator=(const Optimizer&) = delete;
  virtual ~Optimizer() = default;

  // Returns this rank's part of the squared norm of the model's gradient. The sum over all ranks counts every logical
  // element once in any layout. Layouts with the same bucket boundaries give the same bits. Waits for the device.
  ExactSum squared_gradient_norm() const;

  // Makes the next update: computes master weights from gradient_factor * gradient, and derives compute weights from
  // them (publish_weights). With ZeRO-1 and 2 weights must then be gathered. With a `journal` the state changes piece
  // by piece, with the same result bitwise. If the journal shows that its process died within this update, the rest of
  // the update is made.
  void step(const WeightUpdate& update, UpdateJournal* journal = nullptr);

  // Discards the directions of an update that will not be made, because the ranks have not agreed on its step. Only
  // optimizers that compute directions override this.
  virtual void discard_directions() {}

  // Returns the number of updates made so far.
  int64_t steps() const { return steps_; }
  void set_steps(int64_t steps) { steps_ = steps; }

  const std::vector<OptimizerSlot>& slots() const { return slots_; }
  size_t num_slots() const { return slots_.size(); }
  // Returns a slot's tensors by bucket: flat, in the master dtype, arranged like the bucket's master weights. Undefined
  // for buckets without master weights.
  const std::vector<at::Tensor>& slot_tensors(size_t index) const { return tensors_.at(index); }

 protected:
  // Calls visit(UpdatedElements) for the elements of hidden matrices that this rank updates.
  template <class Visit>
  void for_hidden_matrices(const Visit& visit) const {
    for (const UpdateRange& range : update_ranges_) {
      if (range.are_hidden_matrices) visit(elements_of(range));
    }
  }

  // Uses the slots in `state`, the state of the buckets of `parameters`, and shares their tensors. `parameters` must
  // outlive this object.
  Optimizer(ParameterStore& parameters, std::vector<OptimizerSlot> slots, const std::vector<BucketState>& state);

 private:
  // A range with one kind of update.
  struct UpdateRange : GradientRange {
    bool decays, are_hidden_matrices;
    const Parameter* parameter;
  };

  // Updates the elements in place. The result must not depend on how elements are divided into calls. A slot's unit is
  // never divided.
  virtual void change(const UpdatedElements& elements, const WeightUpdate& update) const = 0;

  UpdatedElements elements_of(const UpdateRange& range) const;
  void add_update_ranges(int64_t bucket);
  void add_norm_ranges(int64_t bucket);

  ParameterStore& parameters_;
  const std::vector<OptimizerSlot> slots_;
  const bool cuts_anywhere_;                      // whether slots may be split at any element
  std::vector<std::vector<at::Tensor>> tensors_;  // by slot, then by bucket
  std::vector<UpdateRange> update_ranges_;
  std::vector<GradientRange> norm_ranges_;  // ranges that this rank counts in the norm
  int64_t steps_ = 0;
};

// Returns the training state for this optimizer and weights of this type. fp64 master weights, which only tests use,
// count as fp32.
StateRecipe training_recipe(const OptimizerConfig& config, at::ScalarType compute_dtype);

// Returns the bytes of a rank's journal of updates.
int64_t journal_bytes(const OptimizerConfig& config, const ModelDescription& model);

// Makes the configured optimizer, as the constructor of Optimizer says.
std::unique_ptr<Optimizer> make_optimizer(ParameterStore& parameters, const OptimizerConfig& config,
                                          const std::vector<BucketState>& state);

// Returns a rank's whole state by bucket. Shares the tensors of parameters and optimizer.
std::vector<BucketState> state_of(const ParameterStore& parameters, const Optimizer& optimizer);

// Returns the factor that reduces a gradient of this norm to clip_norm; 1 if the norm is not larger, or clip_norm is 0.
double clip_factor(double gradient_norm, double clip_norm);

}  // namespace copus
