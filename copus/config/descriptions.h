// Descriptions of clusters and models: the user's files, and files that ship with the program.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "copus/config/job_config.h"
#include "copus/description/cluster_description.h"
#include "copus/description/model_description.h"

namespace copus {

// Reads a cluster's description in TOML (docs/configuration.md, [cluster]). `source` names the file in messages. Throws
// UserError for malformed TOML, an unknown key (suggesting the nearest), a wrong type, a value out of range and a
// missing field.
ClusterDescription parse_cluster(std::string_view toml_text, const std::string& source);

// Reads a cluster's description from a file, or finds a shipped one by name. `asked_by` names the option or setting
// that gave the path, for messages: "--cluster". Throws as parse_cluster does, and UserError if the file cannot be
// read.
ClusterDescription read_cluster_file(const std::string& path, const std::string& asked_by);

// The text of a model's config.json, from a file, a folder or the models that ship with Copus. `source` names the file
// in messages.
struct ModelText {
  std::string text;
  std::string source;
};
ModelText read_model_text(const std::string& path, const std::string& asked_by);
ModelDescription read_model_file(const std::string& path, const std::string& asked_by);

// Writes the cluster as TOML, which parse_cluster reads back to an equal value.
std::string to_toml(const ClusterDescription& cluster);

// Finds a description by name or by path. A name stands for a shipped file: configs/clusters/NAME.toml or
// configs/models/NAME.json. A path leads to a cluster's TOML file, or to a model's config.json or its folder. Throws
// UserError if the text is neither a name nor a file (listing all names, or the nearest), and as parse_cluster and
// parse_model_description do.
ClusterDescription find_cluster(const std::string& name_or_path);
ModelDescription find_model(const std::string& name_or_path);

// List the names of the shipped files, sorted.
std::vector<std::string> names_of_shipped_clusters();
std::vector<std::string> names_of_shipped_models();

// The format version of calibration.json.
inline constexpr int64_t calibration_file_version = 2;

// Reads at least one critical batch from a calibration.json that `copus calibrate` wrote. Throws UserError, beginning
// with `asked_by`, if the file cannot be read or has no critical batches.
std::vector<MeasuredCriticalBatch> read_calibration_file(const std::filesystem::path& path,
                                                         const std::string& asked_by);

// Reads a file that `asked_by`, an option or setting, names. If that fails, throws UserError, which says that
// `asked_by` names the file, and what was expected there.
std::string read_named_file(const std::filesystem::path& path, const std::string& asked_by,
                            const std::string& expected);

}  // namespace copus
