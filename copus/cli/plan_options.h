// Reads the options of `copus plan`, and explains what is wrong with invalid ones.
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

// Reads "64", "16,24,32", "16..1024" (16, 32, 64, ..., 1024), or several of these with commas between them. Returns the
// batches in ascending order, each once. Throws UserError for any other text, and for more batches than a plan
// considers.
std::vector<int64_t> parse_global_batches(std::string_view text);

// Adds a batch to those of a plan unless it is among them; they stay in ascending order.
void add_batch(std::vector<int64_t>& global_batches, int64_t batch);

// Reads a number of tokens, for --tokens of `copus simulate` too: "1T", "300B", "2.5M", "15e12". Throws UserError for
// any other text.
int64_t parse_tokens(std::string_view text);

// Number of GPUs to plan for. `asked` is that of --gpus, 0 where it was not given. Throws UserError where neither
// --gpus nor the cluster gives a number, and where the cluster has fewer.
int64_t number_of_gpus(const ClusterDescription& cluster, const std::string& cluster_name, int64_t asked);

// Checks that the description says how fast the cluster's devices compute. Throws UserError otherwise.
void check_can_be_planned(const ClusterDescription& cluster, const std::string& cluster_name);

// Checks that the file is an .svg or .html and that there are several batches to draw. Throws UserError otherwise.
void check_plot(const std::filesystem::path& path, const std::vector<int64_t>& global_batches);

// Finds the program that --system names. Throws UserError for an unknown one, with the nearest there is, and for what
// only Copus is described for: another precision than bf16, and a profile, which Copus measured.
PlannedSystem planned_system(const std::string& name, const std::string& precision,
                             const std::filesystem::path& profile);

// Says that `option` asks the program for a value that it cannot run with, or is not described with.
[[noreturn]] void refuse_value(PlannedSystem system, const std::string& option, const std::string& value,
                               const std::vector<std::string>& known);

// Keeps of the values that the program knows those that `option` asked for, all where it was not given. Throws
// UserError for one that the program does not know.
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
