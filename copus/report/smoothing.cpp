#include "copus/report/smoothing.h"

#include <cmath>

#include "copus/base/error.h"

namespace copus {

// The mean age of a value in the average is `window` / 2, as in a plain mean over the last `window` values.
SmoothedValue::SmoothedValue(double window) : decay_(1 - 2 / (window + 1)) {
  COPUS_CHECK(window >= 1, "window = ", window);
}

void SmoothedValue::add(double value) {
  if (!std::isfinite(value)) return;
  weighted_sum_ = decay_ * weighted_sum_ + (1 - decay_) * value;
  weight_ = decay_ * weight_ + (1 - decay_);
}

std::optional<double> SmoothedValue::value() const {
  return weight_ > 0 ? std::optional(weighted_sum_ / weight_) : std::nullopt;
}

}  // namespace copus
