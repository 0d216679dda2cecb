// What measured steps say about predicted ones: factors that all configurations share (compute, tensor links, data
// links, bubble), what each measured configuration ("cell") deviates beside them, and how sure either is.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <vector>

#include "copus/description/parallel_strategy.h"
#include "copus/performance/step_time.h"

namespace copus {

// Shared factors of predictions: seconds = compute * parts.compute + tensor_links * parts.tensor_communication + bubble
// * parts.bubble + data_links * parts.data_communication + compute * parts.optimizer.
inline constexpr int64_t num_factors = 4;
enum class Factor { compute, tensor_links, data_links, bubble };

// What some steps of one configuration took.
struct Measurement {
  int64_t steps = 0;
  double median_seconds = 0;
  double relative_spread = 0;  // one standard deviation of the logarithm of a step's seconds
  bool operator==(const Measurement&) const = default;
};

// Of these steps (one at least; seconds > 0). The spread is read off the quartiles, so that a few steps that something
// else has slowed down do not count.
Measurement measurement_of(const std::vector<double>& step_seconds);

struct MeasuredCell {
  StepTimeParts parts;                    // as predicted when it was measured last
  std::vector<Measurement> measurements;  // the latest, oldest first; at most max_measurements

  int64_t steps() const;
  // The median of the measurements, each counted with its steps.
  double seconds() const;
  // One standard deviation of the logarithm of seconds() as what the cell takes.
  double relative_noise() const;
  bool operator==(const MeasuredCell&) const = default;
};

// Older ones are forgotten: the machine may have changed.
inline constexpr int64_t max_measurements = 64;

struct Corrected {
  double seconds = 0;
  double relative_deviation = 0;  // one standard deviation of its logarithm
};

// What is known: the measurements, and the belief about the factors that follows from them, whatever their order. A
// value: observing gives a new one.
class Knowledge {
 public:
  // Before anything was measured: factors of 1, give or take.
  Knowledge();
  // After these measurements. Every cell has one at least; seconds and the sum of the parts are > 0.
  explicit Knowledge(std::map<Configuration, MeasuredCell> cells);

  const std::map<Configuration, MeasuredCell>& cells() const { return cells_; }
  // How many steps of this configuration are in it.
  int64_t measured_steps(const Configuration& configuration) const;

  double factor(Factor factor) const { return factors_[static_cast<size_t>(factor)]; }
  // The prediction `parts` with each part under its factor.
  StepTimeParts under_factors(const StepTimeParts& parts) const;
  // One standard deviation of the factor's logarithm.
  double relative_deviation(Factor factor) const;

  // The prediction `parts` of a configuration, corrected: by the factors, and where it was measured itself by that, in
  // the proportion of how sure either is. Quick, for tables of many cells. The sum of the parts must be > 0.
  Corrected correct(const Configuration& configuration, const StepTimeParts& parts) const;

  bool operator==(const Knowledge&) const = default;

 private:
  using Factors = std::array<double, num_factors>;
  // What a cell's measurements come to.
  struct Evidence {
    double log_seconds = 0;
    double noise_variance = 0;     // of log_seconds
    double residual_variance = 0;  // of what the cell deviates from the factors
    bool operator==(const Evidence&) const = default;
  };

  void learn();

  std::map<Configuration, MeasuredCell> cells_;
  std::map<Configuration, Evidence> evidence_;
  Factors factors_;
  std::array<Factors, num_factors> covariance_;  // of the factors' logarithms
};

// `configuration`, predicted as `parts`, was measured.
Knowledge observe(const Knowledge& before, const Configuration& configuration, const StepTimeParts& parts,
                  const Measurement& measurement);

}  // namespace copus
