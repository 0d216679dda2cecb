// Defines the settings with which another program describes its job to the adviser, and converts them to a
// configuration.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "copus/config/job_config.h"

namespace copus {

struct AdviserSettings {
  int64_t batch = 0;        // sequences of the first step, on all ranks together
  int64_t micro_batch = 0;  // sequences of one rank's forward and backward pass
  int64_t sequence_length = 0;
  // The layout. Batches are divided among the `replicas` (data-parallel ranks). The other two are only logged.
  int64_t replicas = 1, tensor_parallel = 1, pipeline_parallel = 1;
  std::optional<int64_t> reference_batch;  // the batch for which the learning rate is tuned; empty: `batch`
  std::vector<int64_t> batches;            // candidates; empty: doublings (orchestrator/predictions/candidates.h)
  int64_t max_steps = 0, max_tokens = 0;   // of the job; 0: unknown
  std::vector<std::string> more;  // "section.key=value" of [noise_scale], [adapt] or [optimizer], or train.clip_norm
};

// Throws UserError as parse_advised_config does, and for a key that does not concern an adviser.
AdvisedConfig config_of(const AdviserSettings& settings);

}  // namespace copus
