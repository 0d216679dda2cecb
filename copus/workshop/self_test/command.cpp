// `copus selftest`: whether the ranks of a job, their links and all its layouts work where it runs. A process that
// nobody has started as a rank starts them itself; ranks that torchrun, srun or mpirun have started join each other.
#include <algorithm>
#include <chrono>
#include <iomanip>
#include <iostream>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "copus/base/durable_file.h"
#include "copus/base/error.h"
#include "copus/base/units.h"
#include "copus/cli/option_checks.h"
#include "copus/comm/job/launcher.h"
#include "copus/comm/shared_memory/single_rank_world.h"
#include "copus/description/configuration_text.h"
#include "copus/workshop/commands.h"
#include "copus/workshop/rank_results.h"
#include "copus/workshop/self_test/self_test.h"

namespace copus {
namespace {

constexpr int failed = 1;
constexpr double wait_seconds = 120;  // of a rank for another
constexpr int64_t corpus_lines = 2000;

struct Options {
  int64_t ranks = 0;  // 0: as this machine has devices, or as the launcher has started
  std::string device;
  double seconds = 60;
  bool json = false;
  std::string as_rank;  // of the processes that the command starts: the file that rank 0 writes the verdict to
};

// What is learned does not matter, but that all ranks read the same.
std::string make_corpus() {
  std::ostringstream text;
  for (int64_t i = 0; i < corpus_lines; ++i) text << "line " << i * i % 97 << " of the corpus; " << i << '\n';
  return text.str();
}

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
  std::string text = concat(count, " x ", family.members(), " ranks (", family.kind, "): ");
  for (size_t i = 0; i < std::min<size_t>(count, 2); ++i) {
    text += concat(i == 0 ? "" : "; ", describe_ranks(family.groups[i]));
  }
  return text + (count > 2 ? "; ..." : "");
}

// "64.0 KiB 76.6 us, 0.86 GB/s (bus 1.50)".
std::string describe(const GroupSpeed& speed) {
  std::string time = concat(format_bytes(static_cast<double>(speed.bytes)), " ",
                            format_number("%.1f", speed.median_seconds * 1e6), " us");
  if (speed.bytes <= static_cast<int64_t>(sizeof(double))) return time;  // there is nothing but latency
  return concat(time, ", ", format_number("%.2f", speed.algorithm_bandwidth / 1e9), " GB/s (bus ",
                format_number("%.2f", speed.bus_bandwidth / 1e9), ")");
}

nlohmann::json to_json(const GroupFamily& family) {
  return {{"kind", family.kind}, {"members", family.members()}, {"groups", family.groups}};
}

// What is found out is told at once, by rank 0, and kept for --json.
class Report {
 public:
  Report(bool is_told, bool json) : is_told_(is_told), json_(json) {}

  bool passed() const { return passed_; }

  void introduce(const RankEnvironment& environment, const std::string& connection,
                 const std::vector<RankPlace>& places) {
    std::map<std::string, std::vector<int64_t>> hosts;
    std::map<std::string, int64_t> devices;
    double skew = 0;
    nlohmann::json rows = nlohmann::json::array();
    for (size_t rank = 0; rank < places.size(); ++rank) {
      const RankPlace& place = places[rank];
      hosts[place.host].push_back(static_cast<int64_t>(rank));
      ++devices[place.device];
      if (place.host != places.front().host) skew = std::max(skew, std::abs(place.clock_offset_seconds));
      rows.push_back({{"rank", rank},
                      {"host", place.host},
                      {"local_rank", place.local_rank},
                      {"device", place.device},
                      {"clock_offset_seconds", place.clock_offset_seconds}});
    }
    result_["launcher"] = name_of(environment.launcher);
    result_["connection"] = connection;
    result_["ranks"] = rows;
    std::string text;
    for (const auto& [host, ranks] : hosts)
      text += concat(text.empty() ? "" : "; ", host, ": ranks ", describe_ranks(ranks));
    tell("ranks", "",
         concat(places.size(), " started by ", name_of(environment.launcher), ", connected by ", connection, "; ",
                text));
    text.clear();
    for (const auto& [device, count] : devices) text += concat(text.empty() ? "" : "; ", count, " x ", device);
    tell("devices", "", text);
    if (hosts.size() > 1) tell("clocks", "", concat("of hosts differ by up to ", format_number("%.3f", skew), " s"));
  }

  void add(const std::vector<GroupCheck>& checks) {
    nlohmann::json& rows = result_["groups"] = nlohmann::json::array();
    for (const GroupCheck& check : checks) {
      const bool ok = check.wrong_ranks == 0;
      judge(ok, "groups", concat(describe(check.family), ", ", check.memory, " memory"));
      for (const std::string& failure : check.failures) tell("", "", failure);
      nlohmann::json row = to_json(check.family);
      row["memory"] = check.memory;
      row["passed"] = ok;
      row["wrong_ranks"] = check.wrong_ranks;
      row["failures"] = check.failures;
      rows.push_back(std::move(row));
    }
  }

  void add(const std::vector<GroupSpeed>& speeds) {
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

  void add(const std::vector<RelayoutCheck>& checks) {
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

  void add(const std::vector<LayoutCheck>& checks) {
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

  void finish(bool is_shortened, double seconds) {
    result_["passed"] = passed_;
    result_["shortened"] = is_shortened;
    result_["seconds"] = seconds;
    if (json_ && is_told_) std::cout << result_.dump() << '\n' << std::flush;
    if (is_shortened) tell("time", "", "was too short for all speeds and layouts; --seconds gives more");
    tell("selftest", passed_ ? "ok" : "FAILED", concat("after ", format_duration(seconds)));
  }

 private:
  void judge(bool ok, const char* what, const std::string& text) {
    passed_ = passed_ && ok;
    tell(what, ok ? "ok" : "FAILED", text);
  }

  void tell(const char* what, const char* verdict, const std::string& text) const {
    if (!is_told_ || json_) return;
    std::cout << std::left << std::setw(10) << what << std::setw(7) << verdict << text << '\n' << std::flush;
  }

  bool is_told_, json_;
  bool passed_ = true;
  nlohmann::json result_;
};

// Every rank of a job; the same on all.
bool test_as_rank(const Options& options, const RankEnvironment& environment, std::unique_ptr<World> world) {
  const auto begin = std::chrono::steady_clock::now();
  const MemoryFile corpus(make_corpus());
  SelfTest test({.device = options.device.empty() ? usual_device() : options.device,
                 .corpus = corpus.path(),
                 .seconds = options.seconds,
                 .wait_seconds = wait_seconds,
                 .local_rank = environment.local_rank,
                 .local_ranks = environment.local_world_size},
                std::move(world));
  Report report(environment.rank == 0, options.json);
  report.introduce(environment, connection_of(environment) + test.gpu_connection(), test.places());
  report.add(test.check_groups());
  // With wrong results in groups, all that follows would be wrong as well, or wait for ever.
  if (report.passed()) {
    report.add(test.check_layouts());
    report.add(test.check_relayouts());
    report.add(test.measure_groups());
  }
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
  report.finish(test.is_shortened(), seconds.count());
  test.world().everyone().barrier();  // a rank that ends with 1 must not be taken for one that died
  return report.passed();
}

int run_selftest(const Options& options, const std::vector<std::string>& arguments) {
  const std::optional<RankEnvironment> environment = read_rank_environment();
  if (environment) {
    if (options.ranks != 0 && options.ranks != environment->world_size) {
      throw UserError(concat("--ranks ", options.ranks, ", and the job was started with ", environment->world_size,
                             " ranks; leave --ranks out where a launcher starts them"));
    }
    const bool passed = test_as_rank(options, *environment, join_world(*environment, wait_seconds));
    if (options.as_rank.empty()) return passed ? 0 : failed;
    if (environment->rank == 0) write_results(options.as_rank, passed ? "passed" : "failed");
    return 0;
  }
  const int64_t ranks =
      options.ranks != 0 ? options.ranks : usual_ranks(options.device.empty() ? usual_device() : options.device);
  if (ranks == 1) return test_as_rank(options, {}, single_rank_world()) ? 0 : failed;
  const MemoryFile verdict;
  std::vector<std::string> with_verdict = arguments;
  with_verdict.insert(with_verdict.end(), {"--as-rank", verdict.path()});
  const int exit_code = launch_ranks(ranks, with_verdict);
  if (exit_code != 0) return exit_code;
  return read_text_file(verdict.path()) == "passed" ? 0 : failed;
}

}  // namespace

void add_selftest(CLI::App& program, Action& action, const std::vector<std::string>& arguments) {
  auto options = std::make_shared<Options>();
  CLI::App& selftest = *program.add_subcommand(
      "selftest",
      "Check the ranks, links and layouts of a job here, in about a minute: groups, bandwidths, re-layouts");
  selftest
      .add_option("--ranks", options->ranks,
                  "Ranks to start (default: one for each GPU, else up to 8 as there are cores); not under a launcher")
      ->check(CLI::Range(int64_t{1}, int64_t{1024}));
  selftest.add_option("--device", options->device, "cpu or cuda (default: cuda where there is one)")
      ->check(CLI::IsMember({"cpu", "cuda"}));
  selftest.add_option("--seconds", options->seconds, "After which speeds and layouts that are left are left out")
      ->check(CLI::Range(1e-3, 3600.0))
      ->capture_default_str();
  selftest.add_flag("--json", options->json, "Print one JSON object");
  selftest.add_option("--as-rank", options->as_rank)->group("");
  selftest.footer(
      "Exit codes: 0 all is well, 1 something failed, 2 a mistake in what was given. Slow groups are told, and do not "
      "fail.\n"
      "Examples:\n"
      "  copus selftest --ranks 8\n"
      "  torchrun --no-python --nproc-per-node 8 copus selftest\n"
      "  srun --ntasks-per-node 8 copus selftest --json");
  selftest.callback(
      [options, arguments, &action] { action = [options, arguments] { return run_selftest(*options, arguments); }; });
}

}  // namespace copus
