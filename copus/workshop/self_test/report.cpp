#include "copus/workshop/self_test/report.h"

#include <algorithm>
#include <cmath>
#include <iostream>
#include <map>
#include <utility>

#include "copus/base/error.h"
#include "copus/base/text/text_distance.h"
#include "copus/base/text/units.h"
#include "copus/description/configuration_text.h"
#include "copus/workshop/table.h"

namespace copus {

namespace {

const char* name_of(LauncherKind launcher) {
  switch (launcher) {
    case LauncherKind::copus:
      return "copus";
    case LauncherKind::torchrun:
      return "torchrun";
    case LauncherKind::slurm:
      return "srun";
    case LauncherKind::open_mpi:
      return "mpirun";
  }
  return "";
}

// "4 x 2 ranks (data, pipeline): 0, 4; 1, 5; ...".
std::string describe(const GroupFamily& family) {
  const size_t count = family.groups.size();
  std::vector<std::string> groups;
  for (size_t i = 0; i < std::min<size_t>(count, 2); ++i) groups.push_back(describe_ranks(family.groups[i]));
  if (count > 2) groups.emplace_back("...");
  return concat(count, " x ", family.members(), " ranks (", family.kind, "): ", join(groups, "; "));
}

// "64.0 KiB 76.6 us, 0.86 GB/s (bus 1.50)".
std::string describe(const GroupSpeed& speed) {
  std::string time = concat(format_bytes(static_cast<double>(speed.bytes)), " ",
                            format_number("%.1f", speed.median_seconds * 1e6), " us");
  if (speed.bytes <= static_cast<int64_t>(sizeof(double))) return time;  // only latency
  return concat(time, ", ", format_number("%.2f", speed.algorithm_bandwidth / 1e9), " GB/s (bus ",
                format_number("%.2f", speed.bus_bandwidth / 1e9), ")");
}

nlohmann::json to_json(const GroupFamily& family) {
  return {{"kind", family.kind}, {"members", family.members()}, {"groups", family.groups}};
}

}  // namespace

void SelfTestReport::introduce(const std::string& gpu_connection, const std::vector<RankPlace>& places, uint64_t seed) {
  seed_ = seed;
  const std::string connection = connection_of(environment_) + gpu_connection;
  const std::string launcher = name_of(environment_.launcher);
  result_["launcher"] = launcher;
  result_["connection"] = connection;
  result_["seed"] = seed;
  nlohmann::json& rows = result_["ranks"] = nlohmann::json::array();
  std::map<std::string, std::vector<int64_t>> hosts;
  std::map<std::string, int64_t> devices;
  double skew = 0;
  for (const RankPlace& place : places) {
    const int64_t rank = std::ssize(rows);
    hosts[place.host].push_back(rank);
    ++devices[place.device];
    if (place.host != places.front().host) skew = std::max(skew, std::abs(place.clock_offset_seconds));
    rows.push_back({{"rank", rank},
                    {"host", place.host},
                    {"local_rank", place.local_rank},
                    {"device", place.device},
                    {"clock_offset_seconds", place.clock_offset_seconds}});
  }
  std::vector<std::string> on_hosts, of_devices;
  for (const auto& [host, ranks] : hosts) on_hosts.push_back(concat(host, ": ranks ", describe_ranks(ranks)));
  for (const auto& [device, count] : devices) of_devices.push_back(concat(count, " x ", device));
  tell("ranks", "",
       concat(places.size(), " started by ", launcher, ", connected by ", connection, "; ", join(on_hosts, "; ")));
  tell("devices", "", join(of_devices, "; "));
  if (hosts.size() > 1) tell("clocks", "", concat("of hosts differ by up to ", format_number("%.3f", skew), " s"));
}

void SelfTestReport::add(const std::vector<GroupCheck>& checks) {
  nlohmann::json& rows = result_["groups"] = nlohmann::json::array();
  for (const GroupCheck& check : checks) {
    const bool ok = check.wrong_ranks == 0;
    judge(ok, "groups",
          concat(describe(check.family), ", ", check.memory, " memory",
                 ok ? concat("; results repeat bitwise (seed ", seed_, ")") : ""));
    for (const std::string& failure : check.failures) tell("", "", failure);
    nlohmann::json row = to_json(check.family);
    row["memory"] = check.memory;
    row["passed"] = ok;
    row["wrong_ranks"] = check.wrong_ranks;
    row["failures"] = check.failures;
    rows.push_back(std::move(row));
  }
}

void SelfTestReport::add(const std::vector<GroupSpeed>& speeds) {
  nlohmann::json& rows = result_["speeds"] = nlohmann::json::array();
  std::string operation, line;  // all sizes of one operation in one family
  for (const GroupSpeed& speed : speeds) {
    const std::string here = concat(speed.operation, ", ", speed.family.groups.size(), " x ", speed.family.members(),
                                    " ranks (", speed.family.kind, "): ");
    if (here != operation && !line.empty()) tell("speed", "", operation + line);
    line = here == operation ? concat(line, "; ", describe(speed)) : describe(speed);
    operation = here;
    for (const std::vector<int64_t>& ranks : speed.slow) {
      line += concat("; SLOW: ranks ", describe_ranks(ranks));
    }
    nlohmann::json row = to_json(speed.family);
    row["operation"] = speed.operation;
    row["bytes"] = speed.bytes;
    row["seconds"] = speed.seconds;
    row["median_seconds"] = speed.median_seconds;
    row["algorithm_bytes_per_second"] = speed.algorithm_bandwidth;
    row["bus_bytes_per_second"] = speed.bus_bandwidth;
    row["slow"] = speed.slow;
    rows.push_back(std::move(row));
  }
  if (!line.empty()) tell("speed", "", operation + line);
}

void SelfTestReport::add(const std::vector<RelayoutCheck>& checks) {
  nlohmann::json& rows = result_["relayouts"] = nlohmann::json::array();
  for (const RelayoutCheck& check : checks) {
    const SwitchReport& report = check.report;
    const bool ok = check.failure.empty();
    judge(ok, "re-layout",
          concat(describe_change(report.from, report.to), ": ",
                 ok ? concat("same state hash, ", format_bytes(static_cast<double>(report.bytes_copied)), " in ",
                             format_number("%.1f", report.pause_seconds * 1e3), " ms")
                    : check.failure));
    rows.push_back({{"from", to_string(report.from.strategy)},
                    {"to", to_string(report.to.strategy)},
                    {"passed", ok},
                    {"failure", check.failure},
                    {"pause_seconds", report.pause_seconds},
                    {"bytes_copied", report.bytes_copied}});
  }
}

void SelfTestReport::add(const std::vector<LayoutCheck>& checks) {
  nlohmann::json& rows = result_["layouts"] = nlohmann::json::array();
  for (const LayoutCheck& check : checks) {
    const bool ok = check.failure.empty();
    judge(ok, "layout",
          concat(to_string(check.strategy), ": ",
                 ok ? concat("losses as of one rank, to ", format_number("%.1e", check.relative_difference),
                             check.bitwise ? "; as of its plain form, to the bit" : "")
                    : check.failure));
    rows.push_back({{"layout", to_string(layout_of(check.strategy))},
                    {"form", to_string(check.strategy)},
                    {"passed", ok},
                    {"failure", check.failure},
                    {"losses", check.losses},
                    {"relative_difference", check.relative_difference},
                    {"bitwise", check.bitwise}});
  }
}

void SelfTestReport::add(const CommunicatorCosts& costs) {
  tell(
      "groups", "",
      concat("a communicator takes ", format_bytes(costs.collective_bytes), " for collectives, ",
             format_bytes(costs.exchange_bytes), " for exchanges, ", format_bytes(costs.message_bytes),
             " for messages of two neighbours, and ", format_number("%.0f", costs.split_seconds * 1e3), " ms to open"));
  result_["communicators"] = {{"collective_bytes", costs.collective_bytes},
                              {"exchange_bytes", costs.exchange_bytes},
                              {"message_bytes", costs.message_bytes},
                              {"split_seconds", costs.split_seconds}};
}

void SelfTestReport::finish(bool is_shortened, double seconds) {
  result_["passed"] = passed_;
  result_["shortened"] = is_shortened;
  result_["seconds"] = seconds;
  if (json_ && environment_.rank == 0) std::cout << result_.dump() << '\n' << std::flush;
  if (is_shortened) tell("time", "", "was too short for all speeds and layouts; --seconds gives more");
  tell("selftest", passed_ ? "ok" : "FAILED", concat("after ", format_duration(seconds)));
}

void SelfTestReport::judge(bool ok, const char* what, const std::string& text) {
  passed_ = passed_ && ok;
  tell(what, ok ? "ok" : "FAILED", text);
}

void SelfTestReport::tell(const char* what, const char* verdict, const std::string& text) const {
  if (environment_.rank != 0 || json_) return;
  constexpr int widths[] = {-10, -7, 0};
  print_cells(widths, {what, verdict, text});
}

}  // namespace copus
