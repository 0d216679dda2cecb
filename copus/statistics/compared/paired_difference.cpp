#include "copus/statistics/compared/paired_difference.h"

#include <cmath>

#include "copus/base/error.h"
#include "copus/statistics/student_t.h"

namespace copus {

PairedDifference paired_difference(std::span<const double> ours, std::span<const double> reference) {
  COPUS_CHECK(!ours.empty() && ours.size() == reference.size(), ours.size(), ", ", reference.size());
  const auto count = static_cast<double>(ours.size());
  PairedDifference result;
  result.pairs = static_cast<int64_t>(ours.size());
  for (size_t pair = 0; pair < ours.size(); ++pair) result.mean += (ours[pair] - reference[pair]) / count;
  if (result.pairs == 1) return result;

  double squares = 0;
  for (size_t pair = 0; pair < ours.size(); ++pair) {
    const double deviation = ours[pair] - reference[pair] - result.mean;
    squares += deviation * deviation;
  }
  result.standard_deviation = std::sqrt(squares / (count - 1));
  const double error = *result.standard_deviation / std::sqrt(count);
  const double quantile = student_t_quantile(0.975, count - 1);
  result.low = result.mean - quantile * error;
  result.high = result.mean + quantile * error;
  result.detectable = (quantile + student_t_quantile(0.8, count - 1)) * error;
  return result;
}

}  // namespace copus
