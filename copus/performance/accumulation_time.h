// How long the steps of a job take of which only its own steps are known: a + b x micro-batches, which every rank runs
// one after the other.
#pragma once

#include <optional>

#include "copus/description/parallel_strategy.h"
#include "copus/performance/learning.h"
#include "copus/performance/step_time.h"

namespace copus {

class AccumulationTime {
 public:
  // Guesses both from the seconds of a step in one batch, which alone cannot tell them apart: what a step has once,
  // such as the reduction of gradients and the update, is taken for a quarter of a micro-batch.
  static AccumulationTime guess(const Configuration& configuration, double step_seconds);

  // The one by which the cells of `known` were predicted; empty where there is none.
  static std::optional<AccumulationTime> of(const Knowledge& known);

  // Predicts a step. Its parts have factors of their own (Factor::compute, Factor::data_links), by which several
  // batches correct the guess.
  StepTimeParts predict(const Configuration& configuration) const;

 private:
  AccumulationTime(double once, double per_micro_batch) : once_(once), per_micro_batch_(per_micro_batch) {}

  double once_, per_micro_batch_;  // a and b, in seconds
};

// The uncertainty of the guess: a may be several times smaller or larger, and the seconds of a micro-batch with it.
inline constexpr FactorPrior accumulation_prior{.compute = 0.7, .links = 1.4};

}  // namespace copus
