// Reads [cluster], a section whose content may stand in a file of its own (for this room's sources only).
#pragma once

#include <string>

#include "copus/config/run_config.h"
#include "copus/config/settings.h"

namespace copus {

// Completes config.cluster, whose inline fields are read already: reads the file that cluster.config names. A file
// named by --set takes the place of inline fields that were not, so that a run can be resumed on another cluster.
// Throws UserError where there are both a file and fields, where a field is wrong or missing, where the file cannot be
// read, and where a clock needs a cluster and there is none.
void read_cluster_section(const Setting& root, const std::string& source, RunConfig& config);

}  // namespace copus
