// How published runs compare with what a plan predicts of them.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "copus/plan/planned_system.h"

namespace copus {

// By how much predictions of memory were off from what published runs took, in the median; found by `copus bench model`
// (docs/performance-model.md).
struct PublishedMemoryError {
  int64_t runs = 0;
  double median = 0;  // relative
};
inline constexpr PublishedMemoryError published_memory_error{.runs = 1516, .median = 0.076};

// Measured over predicted seconds. Nothing is corrected by it: it stands below the tables.
struct PublishedSlowdown {
  std::string_view generation;  // part of the device's name: "H100"
  std::string_view fitted_on;   // the figures that the quartiles are of
  int64_t figures = 0;
  double lower = 0, median = 0, upper = 0;
  // Figures that were kept out of the fit, and their median; no figures: none were left.
  int64_t judged = 0;
  double judged_median = 0;
};

// Returns nothing where no published run of the program on such a device was compared (docs/performance-model.md).
std::optional<PublishedSlowdown> published_slowdown(PlannedSystem system, const std::string& device_name);

}  // namespace copus
