// Training on the modelled clock: one rank does what the modelled job's ranks would do together.
#pragma once

#include "copus/train/trainer/gradient_source.h"
#include "copus/train/trainer/modelled_job.h"
#include "copus/train/trainer/switcher.h"

namespace copus {

// Computes the gradients of all samples of a step on the one rank that trains for the modelled job. If the
// data-parallel ranks of that job would measure norms of their own gradients, the samples of each of these ranks (a
// share of the step) are computed one after another. If they would measure their first micro-batches, each share begins
// with a micro-batch of that size. How the other samples are split into micro-batches affects only rounding.
class ModelledGradients : public GradientSource {
 public:
  // Keeps a reference to `training`.
  explicit ModelledGradients(RankTraining& training) : training_(training), job_(training.config) {}
  StepGradients compute(const ProbePlan& plan, double loss_scale) override;
  void set_seconds(StepAgreement& agreed) override;

 private:
  RankTraining& training_;
  ModelledJob job_;
};

// Moves no tensor; only the configuration whose time the clock models changes.
class ModelledSwitch : public SwitchMethod {
 public:
  explicit ModelledSwitch(const RunConfig& config) : job_(config) {}
  PendingSwitch prepare(const SwitchIntent& intent) override;
  double commit(PendingSwitch& pending, SwitchReport& report) override;

 private:
  ModelledJob job_;
};

}  // namespace copus
