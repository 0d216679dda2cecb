// Learns from measured steps the errors of predictions and their uncertainty. The correction has three parts: factors
// that all configurations share (compute, tensor links, data links, bubble), the deviation of each layout from these
// factors, common to its batches, and the deviation of each measured configuration ("cell") from its layout.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "copus/description/parallel_strategy.h"
#include "copus/performance/step_time.h"

namespace copus {

// Shared factors of predictions: seconds = compute * parts.compute + tensor_links * parts.tensor_communication + bubble
// * parts.bubble + data_links * parts.data_communication + compute * parts.optimizer.
inline constexpr int64_t num_factors = 4;
enum class Factor { compute, tensor_links, data_links, bubble };

// The measured time of some steps of one configuration.
struct Measurement {
  int64_t steps = 0;
  double median_seconds = 0;
  double relative_spread = 0;  // one standard deviation of the logarithm of a step's seconds
  bool operator==(const Measurement&) const = default;
};

// Standard deviations of the factors' logarithms before anything is measured. Kernel curves that were measured on
// another machine of the same kind, or taken from a data sheet, are commonly off by a factor of 1.5. Links are off more
// often, since a network's speed depends on its other users and on the placement of ranks. A pipeline's idle time is
// mostly computation of other stages, so it follows the compute factor; `bubble` is the deviation from the compute
// factor.
struct FactorPrior {
  double compute = 0.4;
  double links = 0.5;  // for tensor links and data links
  double bubble = 0.3;
  bool operator==(const FactorPrior&) const = default;
};

// Summarises these steps (at least one; seconds > 0). The spread is computed from the quartiles, so that it ignores a
// few steps that an outside disturbance slowed down.
Measurement measurement_of(const std::vector<double>& step_seconds);

struct MeasuredCell {
  StepTimeParts parts;                    // prediction at the time of the latest measurement
  std::vector<Measurement> measurements;  // the latest ones, oldest first; at most max_measurements

  int64_t steps() const;
  // Returns the median of the measurements, each weighted by its steps.
  double seconds() const;
  // Returns one standard deviation of the logarithm of seconds(), as an estimate of the cell's true seconds.
  double relative_noise() const;
  bool operator==(const MeasuredCell&) const = default;
};

// Number of measurements that a cell keeps. Older ones are forgotten, since the machine may have changed.
inline constexpr int64_t max_measurements = 64;

struct Corrected {
  double seconds = 0;
  double relative_deviation = 0;  // one standard deviation of the logarithm of seconds
};

// The measurements, and the estimate of the factors that follows from them, whatever their order. It is a value:
// observe() returns a new one.
class Knowledge {
 public:
  // Without measurements: factors are 1, with the uncertainty of the prior.
  Knowledge();
  // Learns from these measurements. Every cell has at least one; seconds and the sum of the parts are > 0.
  explicit Knowledge(std::map<Configuration, MeasuredCell> cells, const FactorPrior& prior = {});

  // Learns from the same measurements under this prior.
  Knowledge under(const FactorPrior& prior) const;

  const std::map<Configuration, MeasuredCell>& cells() const { return cells_; }
  // Returns the number of measured steps of this configuration.
  int64_t measured_steps(const Configuration& configuration) const;

  // Whether this strategy and micro-batch were measured, in any global batch.
  bool knows_layout(const Configuration& configuration) const {
    return layouts_.contains({configuration.strategy, configuration.micro_batch});
  }

  double factor(Factor factor) const { return factors_[static_cast<size_t>(factor)]; }
  // Returns the prediction `parts` with each part multiplied by its factor.
  StepTimeParts under_factors(const StepTimeParts& parts) const;
  // Returns one standard deviation of the factor's logarithm.
  double relative_deviation(Factor factor) const;

  // Returns the prediction `parts` of a configuration, corrected by the factors and by measurements of the
  // configuration itself or of its layout. Each correction has a weight according to its certainty. Fast enough for
  // tables of many cells. The sum of the parts must be > 0.
  Corrected correct(const Configuration& configuration, const StepTimeParts& parts) const;

  bool operator==(const Knowledge&) const = default;

 private:
  using Factors = std::array<double, num_factors>;
  // The summary of a cell's measurements.
  struct Evidence {
    double log_seconds = 0;
    double noise_variance = 0;  // variance of log_seconds
    double own_variance = 0;    // of the cell's deviation from its layout; larger for a cell that deviates too far
    bool operator==(const Evidence&) const = default;
  };
  // What the cells of one layout together show about its deviation L from the factors.
  struct LayoutEvidence {
    double deviation = 0;           // mean over its cells of log(measured) - log(predicted)
    Factors shares{};               // mean over its cells of the factors' shares in these predictions
    double noise_variance = 0;      // of `deviation`, given L
    double deviation_variance = 0;  // of L; larger for a layout that deviates too far
    bool operator==(const LayoutEvidence&) const = default;
  };
  // The strategy and the micro-batch.
  using Layout = std::pair<ParallelStrategy, int64_t>;

  void learn();

  friend Knowledge observe(const Knowledge& before, const Configuration& configuration, const StepTimeParts& parts,
                           const Measurement& measurement);

  FactorPrior prior_;
  std::map<Configuration, MeasuredCell> cells_;
  std::map<Configuration, Evidence> evidence_;
  std::map<Layout, LayoutEvidence> layouts_;
  Factors factors_;
  std::array<Factors, num_factors> covariance_;  // covariance of the factors' logarithms
};

// Adds a measurement of `configuration`, whose prediction was `parts`.
Knowledge observe(const Knowledge& before, const Configuration& configuration, const StepTimeParts& parts,
                  const Measurement& measurement);

}  // namespace copus
