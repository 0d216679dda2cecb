// Models step times of a job about which nothing else is known: a step takes a + b x micro-batches, because every rank
// runs its micro-batches one after another.
#pragma once

#include <optional>

#include "copus/description/parallel_strategy.h"
#include "copus/performance/measured/learning.h"
#include "copus/performance/step_time.h"

namespace copus {

class AccumulationTime {
 public:
  // Guesses two times from the step time of one batch: a, for the reductions and the update, and b, for a micro-batch.
  // Assumes that a is a quarter of b, because one step time cannot tell them apart.
  static AccumulationTime guess(const Configuration& configuration, double step_seconds);

  // Returns the model that predicted the cells of `known`; empty if there are no cells.
  static std::optional<AccumulationTime> of(const Knowledge& known);

  // Predicts a step. a and b have separate factors (Factor::data_links and Factor::compute), so measurements of several
  // batches correct the guess.
  StepTimeParts predict(const Configuration& configuration) const;

 private:
  AccumulationTime(double once, double per_micro_batch) : once_(once), per_micro_batch_(per_micro_batch) {}

  double once_, per_micro_batch_;  // a and b, in seconds
};

// The uncertainty of the guess: a may be several times smaller or larger, which also changes b.
inline constexpr FactorPrior accumulation_prior{.compute = 0.7, .links = 1.4};

}  // namespace copus
