// Records how published runs compare with the predictions of plans.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "copus/plan/planned_system.h"

namespace copus {

// Median relative error of predicted memory, compared with published runs, from `copus bench model`
// (docs/performance-model.md).
struct PublishedMemoryError {
  int64_t runs = 0;
  double median = 0;  // relative
};
inline constexpr PublishedMemoryError published_memory_error{.runs = 1516, .median = 0.076};

// Measured seconds / predicted seconds. Predictions are not corrected by it; it is only shown below the tables.
struct PublishedSlowdown {
  std::string_view generation;  // a word of the device's name: "H100"
  std::string_view fitted_on;   // the number of published runs from which the quartiles come
  int64_t figures = 0;
  double lower = 0, median = 0, upper = 0;
  // The number of published runs that were kept out of the fit, and their median; 0: there are none.
  int64_t judged = 0;
  double judged_median = 0;
};

// Returns nothing if no published run of this program on such a device was compared (docs/performance-model.md).
std::optional<PublishedSlowdown> published_slowdown(PlannedSystem system, const std::string& device_name);

}  // namespace copus
