// Default and resumed values of data.mask_across_documents.
#pragma once

#include "copus/config/run_config.h"

namespace copus {

// Returns the default for a new run whose data have several documents. It is false on GPUs, where masked attention has
// not run yet. It is also false on the modelled clock, which predicts a job with other data.
inline bool masks_documents_by_default(const RunConfig& config) {
  return config.execution.device == "cpu" && !config.cluster.is_modelled();
}

// Copies the value of the resumed run into `wanted`, unless `wanted` has a value. A resumed run without a value is
// older than the setting: its documents attend to each other.
inline void keep_document_mask(const RunConfig& begun, RunConfig& wanted) {
  if (!wanted.data.mask_across_documents) wanted.data.mask_across_documents = begun.data.masks_across_documents();
}

}  // namespace copus
