// The report that `copus gns` prints.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "copus/statistics/noise_scale.h"

namespace copus {

struct GnsReport {
  NoiseScale noise;
  int64_t batches = 0;          // number of measured batches
  int64_t large_batch = 0;      // sequences per batch
  int64_t sequence_length = 0;  // tokens
  std::optional<int64_t> step;  // step of the checkpoint; empty for other models
  std::optional<int64_t> consumed_samples;
  double seconds = 0;
};

// Formats the report as lines for the user.
std::string to_table(const GnsReport& report);
// Formats the report as one JSON object, without a line end.
std::string to_json(const GnsReport& report);

}  // namespace copus
