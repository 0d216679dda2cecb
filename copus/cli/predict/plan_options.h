// Reads the options of `copus plan`, and explains errors in them.
#pragma once

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "copus/description/cluster_description.h"
#include "copus/description/configuration_text.h"
#include "copus/plan/planned_system.h"

namespace copus {

// Reads "64", "16,24,32", "16..1024" (16, 32, 64, ..., 1024), or several of these separated by commas. Returns the
// batches in ascending order without duplicates. Throws UserError for any other text, and for more batches than a plan
// considers.
std::vector<int64_t> parse_global_batches(std::string_view text);

// Inserts a batch, unless it is already there, into a plan's batches, which stay in ascending order.
void add_batch(std::vector<int64_t>& global_batches, int64_t batch);

// Reads a number of tokens, for `copus plan` and for --tokens of `copus simulate`: "1T", "300B", "2.5M", "15e12".
// Throws UserError for any other text.
int64_t parse_tokens(std::string_view text);

// Returns the number of GPUs to plan for. `asked` is the value of --gpus, or 0 if not given. Throws UserError if
// neither --gpus nor the cluster gives a number, or if the cluster has fewer GPUs.
int64_t number_of_gpus(const ClusterDescription& cluster, const std::string& cluster_name, int64_t asked);

// Throws UserError unless the description gives the speed of the cluster's devices.
void check_can_be_planned(const ClusterDescription& cluster, const std::string& cluster_name);

// Throws UserError unless the file is an .svg or .html and there are several batches to draw.
void check_plot(const std::filesystem::path& path, const std::vector<int64_t>& global_batches);

// Returns the program that --system names. Throws UserError for an unknown name, with the nearest known name. Also
// throws UserError if a program other than Copus is combined with options for Copus alone: a precision other than bf16,
// or a profile, which is always measured with Copus.
PlannedSystem planned_system(const std::string& name, const std::string& precision,
                             const std::filesystem::path& profile);

// Throws the UserError that the program cannot run with this value of `option`, or is not described for it.
[[noreturn]] void refuse_value(PlannedSystem system, const std::string& option, const std::string& value,
                               const std::vector<std::string>& known);

// Replaces `known`, the values that a program supports, by the values that the user gave to `option`, if any. Throws
// UserError for a given value that the program does not support.
template <class Value>
void narrow(PlannedSystem system, const std::string& option, std::vector<Value>& known,
            const std::vector<Value>& asked) {
  for (const Value value : asked) {
    if (std::find(known.begin(), known.end(), value) != known.end()) continue;
    std::vector<std::string> names;
    for (const Value one : known) names.push_back(value_text(one));
    refuse_value(system, option, value_text(value), names);
  }
  if (!asked.empty()) known = asked;
}

// Shortens a path or the name of a shipped file: "lab" for my/clusters/lab.toml, "mine" for mine/config.json and mine/.
std::string short_name(const std::filesystem::path& name_or_path, const char* extension);

// Lists the values with these names, in their usual order.
template <HasNames Enum>
std::vector<Enum> by_names(const std::vector<std::string>& names) {
  std::vector<Enum> values = all_values<Enum>();
  std::erase_if(values,
                [&](Enum value) { return std::find(names.begin(), names.end(), to_string(value)) == names.end(); });
  return values;
}

}  // namespace copus
