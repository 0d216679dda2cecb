#include "copus/train/run/run_data.h"

#include <cmath>

#include "copus/config/document_mask.h"

namespace copus {

Dataset open_run_data(const RunConfig& config) {
  return {config.data, config.train.sequence_length, config.model.vocab_size, config.execution.seed,
          masks_documents_by_default(config)};
}

void resolve_documents(RunConfig& config, const Dataset& dataset) {
  config.data.mask_across_documents = dataset.masks_across_documents();
  if (!config.data.masks_across_documents() || config.data.document_length > 0) return;
  constexpr double steps_a_token = 10;  // a tenth of a token is precise enough, and short to read
  config.data.document_length = std::round(dataset.document_lengths().of_a_token * steps_a_token) / steps_a_token;
}

std::optional<std::string> note_on_documents(const RunConfig& config, const Dataset& dataset) {
  if (config.data.masks_across_documents() || !dataset.has_several_documents()) return std::nullopt;
  return "attend to each other within a sequence; in a new run data.mask_across_documents = true keeps them apart";
}

}  // namespace copus
