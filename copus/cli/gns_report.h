// What `copus gns` prints.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "copus/statistics/noise_scale.h"

namespace copus {

struct GnsReport {
  NoiseScale noise;
  int64_t batches = 0;          // those that count
  int64_t large_batch = 0;      // sequences of each
  int64_t sequence_length = 0;  // tokens
  std::optional<int64_t> step;  // of the checkpoint
  std::optional<int64_t> consumed_samples;
  double seconds = 0;
};

std::string to_table(const GnsReport& report);  // lines
std::string to_json(const GnsReport& report);   // one object, without a line's end

}  // namespace copus
