// [cluster]: a section whose content may stand in a file of its own (for this room's sources only).
#pragma once

#include <string>

#include "copus/config/run_config.h"
#include "copus/config/settings.h"

namespace copus {

// Completes config.cluster, whose inline fields are read already: reads the file that cluster.config names. A file
// named by --set takes the place of inline fields that were not, so that a run can be resumed on another cluster.
// Throws UserError: both, a wrong or missing field, a file that cannot be read, a clock that needs a cluster where
// there is none.
void read_cluster_section(const Setting& root, const std::string& source, RunConfig& config);

}  // namespace copus
