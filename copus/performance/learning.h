// What measured steps say about predicted ones: shared factors (compute, tensor links, data links, bubble) and one of
// each configuration's own, with their uncertainty.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <string>

#include "copus/performance/step_time.h"

namespace copus {

// Shared factors of predictions: seconds = compute * parts.compute + tensor_links * parts.tensor_communication + bubble
// * parts.bubble + data_links * parts.data_communication + compute * parts.optimizer.
inline constexpr int64_t num_factors = 4;
enum class Factor { compute, tensor_links, data_links, bubble };

struct Corrected {
  double seconds = 0;
  double relative_deviation = 0;  // one standard deviation of its logarithm
};

// What is known: a Gaussian belief about the logarithms of the factors, and about what remains of each measured
// configuration ("cell") beside them. A value: observing gives a new one.
struct Knowledge {
  std::array<double, num_factors> log_factors = {};
  std::array<std::array<double, num_factors>, num_factors> covariance = {};
  struct Cell {
    int64_t steps = 0;
    double log_residual = 0;  // of what was measured, to what the factors gave when it was
    double variance = 0;
    bool operator==(const Cell&) const = default;
  };
  std::map<std::string, Cell> cells;  // by cell_key
  bool operator==(const Knowledge&) const = default;
};

// Before anything was measured: factors of 1, give or take.
Knowledge no_knowledge();

// A name of the configuration in which all that decides its time is told apart:
// "d2 t1 p4 v1 1f1b sp0 zero1 none gb64 mb2".
std::string cell_key(const Configuration& configuration);

// `steps` steps of `configuration`, predicted as `parts`, took `median_seconds` with this relative spread (one standard
// deviation of a step's logarithm).
Knowledge observe(const Knowledge& before, const Configuration& configuration, const StepTimeParts& parts,
                  double median_seconds, double relative_spread, int64_t steps);

Corrected correct(const Knowledge& knowledge, const Configuration& configuration, const StepTimeParts& parts);

}  // namespace copus
