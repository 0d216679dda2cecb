// One training step on one rank: its parts, in their order.
#pragma once

#include <optional>
#include <vector>

#include "copus/record/step_record.h"
#include "copus/train/state/survival.h"
#include "copus/train/step/step_completion.h"
#include "copus/train/step/stop_request.h"
#include "copus/train/trainer/gradient_source.h"
#include "copus/train/trainer/rank_training.h"
#include "copus/train/trainer/switcher.h"

namespace copus {

class TrainingStep {
 public:
  // Keeps references to all arguments.
  TrainingStep(RankTraining& training, GradientSource& gradients, Survival& survival, Switcher& switcher);

  // As Trainer::step.
  StepRecord run(const StopQuestion& stop);

  // As the functions of Trainer.
  void announce_rate_factor(double factor);
  void learn(const std::vector<MeasuredCriticalBatch>& critical_batches) { completion_.learn(critical_batches); }
  void measure_noise(bool on) { measures_noise_ = on; }
  void trace_next() { traces_next_ = true; }
  void gather_seconds(bool on) { gathers_seconds_ = on; }

  const UpdateRule& rule() const { return completion_.rule(); }

 private:
  ExactSum measure_norm();
  void add_sums(const StepGradients& gradients, StepReport& report);
  std::optional<DualNormsOfStep> prepare_update(const ExactSum& squared_norm, const ProbePlan& plan);
  StepAgreement agree(const StepReport& report, int64_t loss_tokens, const std::optional<DualNormsOfStep>& dual);
  void gather_seconds_of_step();
  void update_weights(const WeightUpdate& update);

  RankTraining& training_;
  GradientSource& gradients_;
  Survival& survival_;
  Switcher& switcher_;
  StepCompletion completion_;
  std::optional<double> announced_rate_factor_;  // on rank 0: a factor that the other ranks have not heard of yet
  bool measures_noise_;
  bool traces_next_ = false;
  bool gathers_seconds_ = false;
};

}  // namespace copus
