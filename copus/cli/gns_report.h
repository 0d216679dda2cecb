// What `copus gns` prints.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "copus/statistics/noise_scale.h"

namespace copus {

struct GnsReport {
  NoiseScale noise;
  int64_t batches = 0;          // how many count
  int64_t large_batch = 0;      // sequences of a batch
  int64_t sequence_length = 0;  // tokens
  std::optional<int64_t> step;  // how far the run was at the checkpoint
  std::optional<int64_t> consumed_samples;
  double seconds = 0;
};

// Lines for a person.
std::string to_table(const GnsReport& report);
// One object, without a line's end.
std::string to_json(const GnsReport& report);

}  // namespace copus
