// What the options of `copus plan` mean, and what is wrong with those that mean nothing.
#pragma once

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "copus/description/cluster_description.h"

namespace copus {

// "64", "16,24,32" or "16..1024" (16, 32, 64, ..., 1024), or any of them joined by commas: ascending, each once. Throws
// UserError: no such list, or more batches than a plan looks at.
std::vector<int64_t> parse_global_batches(std::string_view text);

// Puts another batch among those of a plan, in its place.
void add_batch(std::vector<int64_t>& global_batches, int64_t batch);

// `asked`: by --gpus, 0: not given. Throws UserError: neither it nor the cluster says how many, or the cluster has
// less.
int64_t number_of_gpus(const ClusterDescription& cluster, const std::string& cluster_name, int64_t asked);

// Throws UserError where nothing says how fast the cluster's devices compute.
void check_can_be_planned(const ClusterDescription& cluster, const std::string& cluster_name);

// Throws UserError where the file is no .svg or .html, or there is only one batch to draw.
void check_plot(const std::filesystem::path& path, const std::vector<int64_t>& global_batches);

// What to call what a path or a shipped name stands for: "lab" of my/clusters/lab.toml, "mine" of mine/config.json and
// of mine/.
std::string short_name(const std::filesystem::path& name_or_path, const char* extension);

// The values with these names, in their usual order.
template <HasNames Enum>
std::vector<Enum> by_names(const std::vector<std::string>& names) {
  std::vector<Enum> values = all_values<Enum>();
  std::erase_if(values,
                [&](Enum value) { return std::find(names.begin(), names.end(), to_string(value)) == names.end(); });
  return values;
}

}  // namespace copus
