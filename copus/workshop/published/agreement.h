// How well predictions agree with what others have measured: ranks, the cost of choosing by them, and errors.
#pragma once

#include <span>
#include <vector>

#include "copus/performance/step_time.h"

namespace copus {

// Kendall's tau-b (Kendall 1945) of two orders of the same things: 1 where they agree, -1 where they are opposite;
// pairs that are tied in one of them count for neither. NaN where all are tied or there are fewer than two.
double kendall_tau(std::span<const double> a, std::span<const double> b);

// What choosing by prediction loses: 1 - measured throughput of the one predicted to be fastest / the best measured.
double top1_regret(std::span<const double> predicted_throughput, std::span<const double> measured_throughput);

// NaN where there are none.
double median_of(std::vector<double> values);

// What a cluster's predictions are corrected by: seconds = compute * (parts.compute + bubble + optimizer)
// + communication * (tensor_communication + data_communication).
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

// The constants with the least weighted sum of absolute logarithmic errors, of which what is beyond log 1.5 counts a
// tenth, each between 1/4 and 4. What the samples do not decide stays at 1.
FittedConstants fit_constants(std::span<const FitSample> samples);

}  // namespace copus
