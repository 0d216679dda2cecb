// Computes how well predictions agree with published measurements: the agreement of rankings, the speed lost by
// choosing by prediction, and the errors.
#pragma once

#include <span>
#include <vector>

#include "copus/performance/step_time.h"

namespace copus {

// Returns Kendall's tau-b (Kendall 1945) of two rankings of the same items: 1 if they agree, -1 if they are opposite. A
// pair that is tied in one ranking counts neither as agreeing nor as disagreeing. NaN if all pairs are tied or there
// are fewer than two items.
double kendall_tau(std::span<const double> a, std::span<const double> b);

// The loss from choosing by prediction: 1 - measured throughput of the predicted fastest / best measured throughput.
double top1_regret(std::span<const double> predicted_throughput, std::span<const double> measured_throughput);

// NaN if there are no values.
double median_of(std::vector<double> values);

// Factors that correct the predictions of a group of runs: seconds = compute * (parts.compute + bubble + optimizer) +
// communication * (tensor_communication + data_communication).
struct FittedConstants {
  double compute = 1;
  double communication = 1;
};
double corrected_seconds(const FittedConstants& constants, const StepTimeParts& parts);

struct FitSample {
  StepTimeParts parts;
  double measured_seconds;
  double weight;
};

// Returns the constants, each between 1/4 and 4, that minimise the weighted sum of absolute logarithmic errors. The
// part of an error above log 1.5 counts only a tenth. A constant that the samples do not determine stays at 1.
FittedConstants fit_constants(std::span<const FitSample> samples);

}  // namespace copus
