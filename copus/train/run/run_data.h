// The data of a run, and the settings that depend on them.
#pragma once

#include <optional>
#include <string>

#include "copus/config/run_config.h"
#include "copus/data/dataset.h"

namespace copus {

// Opens the data of a run. If data.mask_across_documents is not set, documents are masked if the data have several
// documents and masks_documents_by_default() is true.
Dataset open_run_data(const RunConfig& config);

// Sets data.mask_across_documents by the data and, if documents are masked, measures data.document_length, unless the
// configuration sets them.
void resolve_documents(RunConfig& config, const Dataset& dataset);

// Tells the user if documents attend to each other, and how to change that; empty if they do not.
std::optional<std::string> note_on_documents(const RunConfig& config, const Dataset& dataset);

}  // namespace copus
