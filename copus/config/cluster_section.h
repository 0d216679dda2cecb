// Reads the section [cluster] or the file that it names. Only sources of this room include this header.
#pragma once

#include <string>

#include "copus/config/run_config.h"
#include "copus/config/settings.h"

namespace copus {

// Completes config.cluster from the file that cluster.config names, after the inline fields have been read. If the file
// is named by --set, it replaces the inline fields that are not given by --set, so that a run can resume on another
// cluster. Otherwise throws UserError if file and inline fields contradict each other. Also throws it if a field is
// wrong or missing, if the file cannot be read, or if the clock needs a cluster and none is given.
void read_cluster_section(const Setting& root, const std::string& source, RunConfig& config);

// Makes a description from a table with the fields of a cluster file. `where` names the table in messages. Throws
// UserError if a field is unknown, wrong or missing.
ClusterDescription describe_cluster(const Setting& table, const std::string& where);

}  // namespace copus
