// Descriptions of clusters and models in files of their own: yours, and those that ship with the program.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>

#include "copus/description/cluster_description.h"
#include "copus/description/model_description.h"

namespace copus {

// Reads a cluster's description in TOML (docs/configuration.md, [cluster]). `source` names the file in messages.
// Throws UserError: malformed TOML, unknown key (names the nearest), wrong type, value out of range, missing field.
ClusterDescription parse_cluster(std::string_view toml_text, const std::string& source);

// The same from a file, or by the name of one that ships with the program. `asked_by` names what asked for it:
// "--cluster". Throws UserError: it cannot be read.
ClusterDescription read_cluster_file(const std::string& path, const std::string& asked_by);

// A description that parse_cluster reads back to an equal value.
std::string to_toml(const ClusterDescription& cluster);

// By the name of a file that ships with the program, configs/clusters/NAME.toml and configs/models/NAME.json, or by a
// path: that of a TOML file; that of a Hugging Face config.json, or of the folder that holds one. Throws UserError:
// neither a name nor a file (lists the names and the nearest), and what parse_cluster and parse_model_description
// throw.
ClusterDescription find_cluster(const std::string& name_or_path);
ModelDescription find_model(const std::string& name_or_path);

// The text of a file that `asked_by` has named. Throws UserError that says so, and what was expected there: it cannot
// be read.
std::string read_named_file(const std::filesystem::path& path, const std::string& asked_by,
                            const std::string& expected);

}  // namespace copus
