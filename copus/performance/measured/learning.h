// Corrects predictions by measured steps, with an uncertainty. A correction has three parts:
// - factors that all configurations share: compute, tensor links, data links, bubble;
// - the deviation of a layout from these factors, the same for all its batches;
// - the deviation of a measured configuration (a "cell") from its layout.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "copus/description/parallel_strategy.h"
#include "copus/performance/step_time.h"

namespace copus {

// The shared factors. The corrected seconds are compute * (parts.compute + parts.optimizer) + tensor_links *
// parts.tensor_communication + data_links * parts.data_communication + bubble * parts.bubble.
inline constexpr int64_t num_factors = 4;
enum class Factor { compute, tensor_links, data_links, bubble };

// The measured time of consecutive steps of one configuration.
struct Measurement {
  int64_t steps = 0;
  double median_seconds = 0;
  double relative_spread = 0;  // standard deviation of log(seconds of a step)
  bool operator==(const Measurement&) const = default;
};

// Standard deviations of the factors' logarithms before any measurement. Kernel speeds from a data sheet, or from
// another machine of the same kind, are commonly off by a factor of 1.5. Links are off by more, because a network's
// speed depends on other users and on the placement of ranks. A pipeline idles mostly while other stages compute, so
// `bubble` is relative to the compute factor.
struct FactorPrior {
  double compute = 0.4;
  double links = 0.5;  // for tensor links and data links
  double bubble = 0.3;
  bool operator==(const FactorPrior&) const = default;
};

// Summarises at least one step (seconds > 0). The spread comes from the quartiles, so that a few disturbed steps do not
// matter.
Measurement measurement_of(const std::vector<double>& step_seconds);

struct MeasuredCell {
  StepTimeParts parts;                    // prediction at the time of the latest measurement
  std::vector<Measurement> measurements;  // the latest max_measurements, oldest first

  int64_t steps() const;
  // Returns the median of the measurements, weighted by their steps.
  double seconds() const;
  // Returns the standard deviation of log(seconds()) as an estimate of the cell's true seconds.
  double relative_noise() const;
  bool operator==(const MeasuredCell&) const = default;
};

// Number of measurements that a cell keeps. Older ones are dropped, because the machine may have changed.
inline constexpr int64_t max_measurements = 64;

struct Corrected {
  double seconds = 0;
  double relative_deviation = 0;  // standard deviation of log(seconds)
};

// Measurements and the factors estimated from them, independent of the measurements' order. Immutable: observe()
// returns a new value.
class Knowledge {
 public:
  // Without measurements all factors are 1, with the prior's uncertainty.
  Knowledge();
  // Estimates the factors. Every cell has at least one measurement; seconds and the sum of the parts must be > 0.
  explicit Knowledge(std::map<Configuration, MeasuredCell> cells, const FactorPrior& prior = {});

  // Returns the estimate from the same measurements under another prior.
  Knowledge under(const FactorPrior& prior) const;

  const std::map<Configuration, MeasuredCell>& cells() const { return cells_; }
  // Returns the number of measured steps of this configuration.
  int64_t measured_steps(const Configuration& configuration) const;

  // Returns whether the strategy and micro-batch were measured with any global batch.
  bool knows_layout(const Configuration& configuration) const {
    return layouts_.contains({configuration.strategy, configuration.micro_batch});
  }

  double factor(Factor factor) const { return factors_[static_cast<size_t>(factor)]; }
  // Returns `parts`, each multiplied by its factor.
  StepTimeParts under_factors(const StepTimeParts& parts) const;
  // Returns the standard deviation of the factor's logarithm.
  double relative_deviation(Factor factor) const;

  // Corrects `parts` (sum > 0), the prediction for a configuration, by the factors and by measurements of its layout
  // and of the configuration itself. More certain measurements have more weight. Fast enough for tables of many
  // configurations.
  Corrected correct(const Configuration& configuration, const StepTimeParts& parts) const;

  bool operator==(const Knowledge&) const = default;

 private:
  using Factors = std::array<double, num_factors>;
  // A cell's measurements, summarised.
  struct Evidence {
    double log_seconds = 0;
    double noise_variance = 0;  // variance of log_seconds
    double own_variance = 0;    // of the cell's deviation from its layout; larger for outliers
    bool operator==(const Evidence&) const = default;
  };
  // What a layout's cells together show about its deviation L from the factors.
  struct LayoutEvidence {
    double deviation = 0;           // mean over its cells of log(measured) - log(predicted)
    Factors shares{};               // mean over its cells of the factors' fractions in the predictions
    double noise_variance = 0;      // of `deviation`, given L
    double deviation_variance = 0;  // of L; larger for outliers
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
