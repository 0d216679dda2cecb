// Applies a step to the progress of a run, once all ranks have agreed on its numbers: computes the update, counters and
// averages, and the record. Needs no tensors, so that a process that did not compute the step can complete it exactly
// as the other processes do.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "copus/base/error.h"
#include "copus/config/run_config.h"
#include "copus/orchestrator/learning_rate/learning_rate.h"
#include "copus/record/step_record.h"
#include "copus/train/optimizer/update_rule.h"
#include "copus/train/step/step_agreement.h"
#include "copus/train/step/training_state.h"

namespace copus {

// Thrown if training has diverged: too many consecutive steps without finite loss and gradient. All ranks throw it in
// the same step.
class TrainingDiverged : public UserError {
 public:
  using UserError::UserError;
};

class StepCompletion {
 public:
  // The run ends after this many consecutive steps without finite loss and gradient.
  static constexpr int64_t max_skipped_in_a_row = 10;

  explicit StepCompletion(const RunConfig& config);

  const UpdateRule& rule() const { return *rule_; }

  // From the next step on, records state critical batches by these measured ones (noise_scale.calibration).
  void learn(const std::vector<MeasuredCriticalBatch>& critical_batches) {
    config_.noise_scale.critical_batches = critical_batches;
  }

  // Returns the update of the step after `state`; empty if no token of the step carries loss, or if the numbers are not
  // finite, which skips the step. `agreed.loss` is the mean per token.
  std::optional<WeightUpdate> update_of(const StepAgreement& agreed, const TrainingState& state) const;

  // Completes the step in `state`, after its update. `measures_noise`: whether the step measured norms. The record
  // lacks the pause before the step, which only processes that computed the step know. Throws TrainingDiverged after
  // max_skipped_in_a_row.
  StepRecord complete(const StepAgreement& agreed, const std::optional<WeightUpdate>& update, bool measures_noise,
                      TrainingState& state) const;

 private:
  double learning_rate(const StepAgreement& agreed, const TrainingState& state, double optimizer_factor) const;
  WeightUpdate next_update(const StepAgreement& agreed, const TrainingState& state) const;
  std::optional<NormObservation> observe_noise(const StepAgreement& agreed, TrainingState& state) const;
  void observe_dual(const StepAgreement& agreed, TrainingState& state) const;
  static void skip(const StepAgreement& agreed, double learning_rate, TrainingState& state);
  StepRecord record_of(const StepAgreement& agreed, double learning_rate, const std::optional<NormObservation>& norms,
                       bool measures_noise, const TrainingState& state) const;
  int64_t tokens_per_step(const TrainingState& state) const;

  RunConfig config_;
  LearningRate learning_rate_;
  std::shared_ptr<const UpdateRule> rule_;
};

}  // namespace copus
