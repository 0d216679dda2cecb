// The data of a run, and the settings that depend on them.
#pragma once

#include <optional>
#include <string>

#include "copus/config/run_config.h"
#include "copus/data/dataset.h"

namespace copus {

// Opens the data of a run. If the configuration does not say whether documents stay apart (data.mask_across_documents),
// they do in data with several documents where masks_documents_by_default().
Dataset open_run_data(const RunConfig& config);

// Sets data.mask_across_documents as the data have it, and with it measures data.document_length, unless the
// configuration has them.
void resolve_documents(RunConfig& config, const Dataset& dataset);

// Says that the documents of the data attend to each other, and how to change that; empty if they do not.
std::optional<std::string> note_on_documents(const RunConfig& config, const Dataset& dataset);

}  // namespace copus
