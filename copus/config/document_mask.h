// Whether documents stay apart (data.mask_across_documents) in a run whose configuration does not say it.
#pragma once

#include "copus/config/run_config.h"

namespace copus {

// Returns the value for a new run whose data have several documents. It is false on GPUs, where attention within
// documents has not been run yet, and on the modelled clock, which stands for a job with other data.
inline bool masks_documents_by_default(const RunConfig& config) {
  return config.execution.device == "cpu" && !config.cluster.is_modelled();
}

// Takes the value of a run that has begun, unless `wanted` has one. A begun run without the key is older than the
// setting, and its documents attend to each other.
inline void keep_document_mask(const RunConfig& begun, RunConfig& wanted) {
  if (!wanted.data.mask_across_documents) wanted.data.mask_across_documents = begun.data.masks_across_documents();
}

}  // namespace copus
