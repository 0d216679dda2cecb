// The smoothed numbers that the progress line shows.
#pragma once

#include <optional>

namespace copus {

// An exponential moving average, corrected for its start: after one value it is that value. Not finite values (skipped
// steps) are left out.
class SmoothedValue {
 public:
  // `window`: the number of values that the average looks back on, roughly; >= 1.
  explicit SmoothedValue(double window);

  void add(double value);
  std::optional<double> value() const;  // empty before the first finite value

 private:
  double decay_;
  double weighted_sum_ = 0;
  double weight_ = 0;
};

}  // namespace copus
