#include "copus/config/cluster_section.h"

#include <algorithm>
#include <array>

#include "copus/base/error.h"
#include "copus/base/text/text_distance.h"
#include "copus/config/descriptions.h"
#include "copus/config/run_config_fields.h"
#include "copus/config/settings_reader.h"

namespace copus {

namespace {

constexpr std::array needed_keys = {"ranks_per_node", "within_node", "between_nodes"};

std::vector<std::string> cluster_keys() {
  FieldKeys collector;
  const ClusterDescription description;
  visit_cluster(description, collector);
  return collector.keys();
}

bool contains(const std::vector<std::string>& keys, const std::string& key) {
  return std::find(keys.begin(), keys.end(), key) != keys.end();
}

void require_needed_keys(const Setting& cluster, const std::string& where) {
  for (const char* key : needed_keys) {
    if (cluster.find(key)) continue;
    throw UserError(concat(where, ": ", key, " is missing: a cluster has ranks_per_node and two links, for example ",
                           "within_node = { ", latency_key, " = 5.0, ", bandwidth_key, " = 100.0 } and between_nodes"));
  }
}

// Returns an inline field of the section, preferably one that --set gave; null if there is none.
const Setting* find_inline_field(const Setting& section) {
  const std::vector<std::string> keys = cluster_keys();
  const Setting* found = nullptr;
  for (const Setting& field : section.children) {
    if (contains(keys, field.name) && (!found || field.overrides)) found = &field;
  }
  return found;
}

}  // namespace

ClusterDescription parse_cluster(std::string_view toml_text, const std::string& source) {
  return describe_cluster(read_settings(toml_text, source, {}), source);
}

ClusterDescription describe_cluster(const Setting& table, const std::string& where) {
  const std::vector<std::string> keys = cluster_keys();
  for (const Setting& setting : table.children) {
    if (contains(keys, setting.name)) continue;
    throw UserError(concat(setting.origin, ": unknown key \"", setting.name, "\" in the description of a cluster; ",
                           suggest(setting.name, keys, "its keys are")));
  }
  require_needed_keys(table, where);
  ClusterDescription description;
  SettingsReader reader(table);
  reader.section("");
  visit_cluster(description, reader);
  return description;
}

void read_cluster_section(const Setting& root, const std::string& source, RunConfig& config) {
  const Setting* section = root.find("cluster");
  const Setting* file = section ? section->find(cluster_config_key) : nullptr;
  const Setting* inline_field = section ? find_inline_field(*section) : nullptr;
  if (file) {
    if (inline_field && (inline_field->overrides || !file->overrides)) {
      throw UserError(concat(inline_field->origin, ": cluster.", inline_field->name, " contradicts cluster.config (",
                             file->origin, "): describe the cluster in one way"));
    }
    config.cluster.description =
        read_cluster_file(path_of(*file, "cluster.config"), concat(file->origin, ": cluster.config"));
  } else if (inline_field) {
    require_needed_keys(*section, concat(section->origin, ": [cluster]"));
  }
  if (config.cluster.clock != ClockKind::real && config.cluster.description == ClusterDescription{}) {
    throw UserError(concat(source, ": cluster.clock \"", to_string(config.cluster.clock),
                           "\" shows the time that a cluster would take, and none is described: name its file by ",
                           "cluster.config (configs/clusters/ has examples), or set cluster.clock to \"real\""));
  }
}

}  // namespace copus
