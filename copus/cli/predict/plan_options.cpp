#include "copus/cli/predict/plan_options.h"

#include <charconv>
#include <cmath>
#include <set>

#include "copus/base/error.h"
#include "copus/base/text/text_distance.h"
#include "copus/base/text/units.h"
#include "copus/description/configuration_fields.h"

namespace copus {

namespace {

constexpr size_t most_batches = 64;

[[noreturn]] void refuse_batches(std::string_view text, const std::string& why) {
  throw UserError(concat("--global-batch ", text, ": ", why,
                         "; expected a number of sequences, several (16,24,32), or those from one to another, doubling "
                         "(16..1024)"));
}

int64_t batch(std::string_view text, std::string_view number) {
  int64_t value = 0;
  const auto [end, error] = std::from_chars(number.data(), number.data() + number.size(), value);
  if (error != std::errc() || end != number.data() + number.size() || !allowed_batches.contains(value)) {
    refuse_batches(
        text, concat("\"", number, "\" is no whole number from ", allowed_batches.low, " to ", allowed_batches.high));
  }
  return value;
}

// Refuses (a) numbers that no current device reaches, because their unit must be wrong, and (b) a matmul rate above the
// data sheet's peak.
void check_is_possible(const ClusterDescription& cluster, const std::string& cluster_name) {
  const Device& device = cluster.device;
  const auto refuse = [&](const char* key, double value, const std::string& expected) {
    throw UserError(concat("--cluster ", cluster_name, ": ", key, " = ", format_number("%.6g", value),
                           " is impossible; ", "expected ", expected, ": look at its unit"));
  };
  constexpr double tera = 1e12, giga = 1e9;
  if (device.peak_flops_per_second > 0 && device.matmul_flops_per_second > device.peak_flops_per_second) {
    refuse("matmul_teraflops", device.matmul_flops_per_second / tera,
           concat("at most peak_teraflops, ", format_number("%.6g", device.peak_flops_per_second / tera)));
  }
  const auto at_most = [&](const char* key, double value, double most) {
    if (value > most) refuse(key, value, concat("at most ", format_number("%.6g", most)));
  };
  at_most("matmul_teraflops", device.matmul_flops_per_second / tera, 20'000);
  at_most("peak_teraflops", device.peak_flops_per_second / tera, 20'000);
  at_most("memory_gigabytes", device.memory_bytes / giga, 10'000);
  at_most("memory_gigabytes_per_second", device.memory_bytes_per_second / giga, 100'000);
  at_most("within_node.gigabytes_per_second", cluster.within_node.bytes_per_second / giga, 10'000);
  at_most("between_nodes.gigabytes_per_second", cluster.between_nodes.bytes_per_second / giga, 10'000);
  constexpr double micro = 1e-6, most_microseconds = 100'000;  // the latency of a path around the earth
  at_most("within_node.latency_microseconds", cluster.within_node.latency_seconds / micro, most_microseconds);
  at_most("between_nodes.latency_microseconds", cluster.between_nodes.latency_seconds / micro, most_microseconds);
  // Refuses values that are a thousand times too small because of a wrong unit. Real devices compute 5 to 600
  // operations per byte that their memory can move, and up to 10,000 operations per second per byte of memory capacity.
  const auto at_least = [&](const char* key, double value, double least, const char* beside) {
    if (value > 0 && value < least)
      refuse(key, value, concat("at least ", format_number("%.6g", least), " beside ", beside));
  };
  at_least("matmul_teraflops", device.matmul_flops_per_second / tera, device.peak_flops_per_second / tera / 50,
           "peak_teraflops");
  at_least("memory_gigabytes_per_second", device.memory_bytes_per_second / giga,
           device.matmul_flops_per_second / 10'000 / giga, "matmul_teraflops");
  at_least("memory_gigabytes", device.memory_bytes / giga, device.matmul_flops_per_second / 200'000 / giga,
           "matmul_teraflops");
}

}  // namespace

std::vector<int64_t> parse_global_batches(std::string_view text) {
  std::set<int64_t> batches;
  for (size_t begin = 0; begin <= text.size();) {
    const size_t comma = std::min(text.find(',', begin), text.size());
    const std::string_view item = text.substr(begin, comma - begin);
    begin = comma + 1;
    const size_t dots = item.find("..");
    if (dots == std::string_view::npos) {
      batches.insert(batch(text, item));
      continue;
    }
    const int64_t first = batch(text, item.substr(0, dots));
    const int64_t last = batch(text, item.substr(dots + 2));
    if (first > last) refuse_batches(text, concat(first, " is above ", last));
    for (int64_t value = first; value < last; value *= 2) batches.insert(value);
    batches.insert(last);
  }
  if (batches.size() > most_batches) {
    refuse_batches(text,
                   concat("these are ", batches.size(), " batches, and a plan looks at ", most_batches, " at most"));
  }
  return {batches.begin(), batches.end()};
}

void add_batch(std::vector<int64_t>& global_batches, int64_t batch) {
  const auto place = std::lower_bound(global_batches.begin(), global_batches.end(), batch);
  if (place == global_batches.end() || *place != batch) global_batches.insert(place, batch);
}

int64_t parse_tokens(std::string_view text) {
  constexpr std::string_view suffixes = "KMBT";
  constexpr double most = 1e18;
  double tokens = 0;
  const char* const end = text.data() + text.size();
  // NOLINTNEXTLINE(bugprone-suspicious-stringview-data-usage): its end is passed too
  const auto [rest, error] = std::from_chars(text.data(), end, tokens);
  const size_t thousands = rest == end ? 0 : suffixes.find(*rest) + 1;  // no such suffix: npos + 1, which is also 0
  tokens *= std::pow(1000.0, static_cast<double>(thousands));
  const bool is_number = error == std::errc() && rest + (thousands > 0 ? 1 : 0) == end;
  if (!is_number || !(tokens >= 1 && tokens <= most)) {
    throw UserError(concat("--tokens ", text,
                           ": expected a number of tokens from 1 to 1e18, such as 300B, 1T or 15e12 ",
                           "(K, M, B and T are thousand, million, billion, trillion)"));
  }
  return std::llround(tokens);
}

int64_t number_of_gpus(const ClusterDescription& cluster, const std::string& cluster_name, int64_t asked) {
  constexpr int64_t most = allowed_degrees.high;
  if (asked == 0 && cluster.num_ranks == 0) {
    throw UserError(concat("--gpus is missing: ", cluster_name, " does not say how many devices it has (num_ranks); ",
                           "give for example --gpus ", cluster.ranks_per_node, " for one node"));
  }
  const int64_t number = asked > 0 ? asked : cluster.num_ranks;
  if (cluster.num_ranks > 0 && number > cluster.num_ranks) {
    throw UserError(concat("--gpus ", asked, ": ", cluster_name, " has ", cluster.num_ranks,
                           " devices (num_ranks); take fewer, or describe a larger cluster"));
  }
  if (number > most) throw UserError(concat("--gpus ", number, " is more than a plan looks at, ", most));
  return number;
}

void check_can_be_planned(const ClusterDescription& cluster, const std::string& cluster_name) {
  check_is_possible(cluster, cluster_name);
  if (is_speed_known(cluster)) return;
  throw UserError(
      concat("--cluster ", cluster_name, ": the description does not say how fast a device computes; ",
             "describe it in a [device] section with matmul_teraflops, memory_gigabytes_per_second and ",
             "memory_gigabytes (configs/clusters/h100-sxm.toml is an example), or give teraflops_per_rank"));
}

void check_plot(const std::filesystem::path& path, const std::vector<int64_t>& global_batches) {
  if (path.extension() != ".svg" && path.extension() != ".html") {
    throw UserError(concat("--plot ", path.string(), ": expected a file that ends in .svg or .html"));
  }
  if (global_batches.size() < 2) {
    throw UserError(concat("--plot ", path.string(),
                           " draws throughput over the global batch, and --global-batch names ", "only ",
                           global_batches.front(), "; give several, for example 16..1024"));
  }
}

PlannedSystem planned_system(const std::string& name, const std::string& precision,
                             const std::filesystem::path& profile) {
  const std::optional<PlannedSystem> system = find_value<PlannedSystem>(name == "torchtitan-0.2" ? "torchtitan" : name);
  if (!system) {
    // "torchtitan-0.4", "nanotron-0.4": a known program in an unknown version.
    for (const PlannedSystem known : all_values<PlannedSystem>()) {
      const std::string program = concat(to_string(known), "-");
      if (name.compare(0, program.size(), program) != 0 || program.find('.') != std::string::npos) continue;
      const bool is_torchtitan = known == PlannedSystem::torchtitan;
      throw UserError(concat("--system ", name, ": this version of ", to_string(known), " is not described; take ",
                             is_torchtitan ? "torchtitan-0.2 or torchtitan-0.3" : to_string(known),
                             ", whose rules are those of the version in docs/plan.md"));
    }
    throw UserError(concat("--system ", name, ": there is no such program; ",
                           suggest(name, all_names<PlannedSystem>(), "those that a plan can be made for are")));
  }
  if (*system == PlannedSystem::copus) return *system;
  if (precision != "bf16") {
    throw UserError(concat("--precision ", precision, ": ", full_name(*system),
                           " is described in bf16 alone; leave --precision out, or take --system copus"));
  }
  if (!profile.empty()) {
    throw UserError(concat("--profile ", profile.string(), " holds what Copus measured of itself, and the plan is for ",
                           full_name(*system), "; leave one of the two out"));
  }
  return *system;
}

void refuse_value(PlannedSystem system, const std::string& option, const std::string& value,
                  const std::vector<std::string>& known) {
  throw UserError(concat(option, " ", value, ": ", full_name(system),
                         ", as it is described for plans, does not run with this, but with ", join(known, ", "),
                         "; take one of these, or --system copus"));
}

std::string short_name(const std::filesystem::path& name_or_path, const char* extension) {
  std::filesystem::path path = name_or_path;
  if (path.filename() == "config.json" && path.has_parent_path()) path = path.parent_path();
  if (path.filename().empty() || path.filename() == ".") path = path.parent_path();
  return (path.extension() == extension ? path.stem() : path.filename()).string();
}

}  // namespace copus
