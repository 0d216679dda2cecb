// Reads [cluster], a section whose content may stand in a file of its own (only this room's sources include this
// header).
#pragma once

#include <string>

#include "copus/config/run_config.h"
#include "copus/config/settings.h"

namespace copus {

// Completes config.cluster, whose inline fields are read already, by reading the file that cluster.config names. A file
// named by --set replaces inline fields that were not given by --set, so that a run can be resumed on another cluster.
// Throws UserError where there are both a file and fields, where a field is wrong or missing, where the file cannot be
// read, and where a clock needs a cluster and there is none.
void read_cluster_section(const Setting& root, const std::string& source, RunConfig& config);

// Makes a description from a table with the fields of a cluster file. `where` names it in messages. Throws UserError
// where a field is unknown, wrong or missing.
ClusterDescription describe_cluster(const Setting& table, const std::string& where);

}  // namespace copus
