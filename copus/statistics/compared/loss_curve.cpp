#include "copus/statistics/compared/loss_curve.h"

#include <algorithm>
#include <cmath>

#include "copus/base/error.h"

namespace copus {

TargetCrossing time_to_target(std::span<const Evaluation> evaluations, double target) {
  for (const Evaluation& evaluation : evaluations) COPUS_CHECK(std::isfinite(evaluation.loss), evaluation.tokens);
  const auto after = std::find_if(evaluations.begin(), evaluations.end(),
                                  [&](const Evaluation& evaluation) { return evaluation.loss <= target; });
  if (after == evaluations.end()) return {TargetCrossing::Kind::never};
  if (after->loss == target) return {TargetCrossing::Kind::reached, after->seconds, after->tokens};
  if (after == evaluations.begin()) return {TargetCrossing::Kind::before};
  const auto before = std::prev(after);
  const double share = (before->loss - target) / (before->loss - after->loss);
  return {TargetCrossing::Kind::reached, std::lerp(before->seconds, after->seconds, share),
          std::lerp(before->tokens, after->tokens, share)};
}

}  // namespace copus
