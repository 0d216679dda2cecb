// `copus selftest`: checks that the ranks of a job, their links and all its layouts work on their machines. It starts
// the ranks itself, unless torchrun, srun or mpirun has already started this process as a rank.
#include <chrono>
#include <csignal>
#include <filesystem>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>

#include "copus/base/error.h"
#include "copus/cli/option_checks.h"
#include "copus/comm/shared_memory/single_rank_world.h"
#include "copus/workshop/commands.h"
#include "copus/workshop/measuring_run.h"
#include "copus/workshop/memory_file.h"
#include "copus/workshop/self_test/faults/fault_report.h"
#include "copus/workshop/self_test/faults/fault_test.h"
#include "copus/workshop/self_test/faults/watched_job.h"
#include "copus/workshop/self_test/report.h"
#include "copus/workshop/self_test/self_test.h"
#include "copus/workshop/temporary_folder.h"

namespace copus {
namespace {

constexpr int failed = 1;
constexpr double wait_seconds = 120;  // how long a rank waits for another rank
constexpr int64_t corpus_bytes = 1 << 16;

struct SelfTestCommandOptions {
  int64_t ranks = 0;   // 0: the number of this machine's devices, or of the ranks that the launcher has started
  std::string device;  // empty: the usual one
  double seconds = 60;
  bool json = false;
  int64_t faults = 0;  // 0: run the self-test without faults
  uint64_t seed = 1;
};

// Runs the tests as one rank of a job; every rank calls this. Returns whether all tests passed on all ranks. Rank 0
// prints.
bool test(const SelfTestCommandOptions& options, const RankEnvironment& environment, std::unique_ptr<World> world) {
  const MemoryFile corpus(random_letters(corpus_bytes));
  SelfTestReport report(environment, options.json);
  run_self_test({.device = options.device.empty() ? usual_device() : options.device,
                 .corpus = corpus.path(),
                 .seconds = options.seconds,
                 .wait_seconds = wait_seconds,
                 .local_rank = environment.local_rank,
                 .local_ranks = environment.local_world_size,
                 .seed = options.seed},
                std::move(world), report);
  return report.passed();
}

// A job of run_ranks. Request: the options "device", "seconds" and "json". Result: whether all tests passed.
nlohmann::json test_as_rank(const nlohmann::json& request, const RankEnvironment& environment) {
  const SelfTestCommandOptions options{.device = request.at("device").get<std::string>(),
                                       .seconds = request.at("seconds").get<double>(),
                                       .json = request.at("json").get<bool>(),
                                       .seed = request.at("seed").get<uint64_t>()};
  return test(options, environment, join_world(environment, wait_seconds));
}

bool start_and_test(const SelfTestCommandOptions& options) {
  const int64_t ranks =
      options.ranks != 0 ? options.ranks : usual_ranks(options.device.empty() ? usual_device() : options.device);
  if (ranks == 1) return test(options, {}, single_rank_world());
  return run_ranks(
             ranks, "selftest",
             {{"device", options.device}, {"seconds", options.seconds}, {"json", options.json}, {"seed", options.seed}})
      .get<bool>();
}

// Runs jobs of this program and injects faults into them. Returns the exit code; if the user stops the command, this is
// the code of a stopped run.
int harm_and_test(const SelfTestCommandOptions& options) {
  constexpr int64_t usual = 4;
  const int64_t ranks = options.ranks == 0 ? usual : options.ranks;
  if (ranks < 2 || ranks % 2 != 0 || batch_of_fault_test % ranks != 0) {
    throw UserError(concat("--ranks ", ranks, ": with --faults a job has 2, 4 or 8 ranks"));
  }
  const auto start = std::chrono::steady_clock::now();
  TemporaryFolder folder(std::filesystem::temp_directory_path());
  const FaultTestOptions test{.faults = options.faults, .ranks = ranks, .seed = options.seed, .folder = folder.path()};
  FaultReport report(test, options.json);
  try {
    run_fault_test(test, report);
  } catch (const Interrupted& interrupted) {
    return interrupted.signal == SIGINT ? 130 : 75;
  }
  report.finish(std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
  if (report.passed()) return 0;
  folder.keep();
  std::cerr << "copus: the runs are left in " << folder.path().string() << '\n';
  return failed;
}

int run_selftest(const SelfTestCommandOptions& options) {
  const std::optional<RankEnvironment> environment = read_rank_environment();
  if (options.faults > 0) {
    if (environment) throw UserError("--faults starts the ranks itself; leave out torchrun, srun or mpirun");
    if (!options.device.empty() && options.device != "cpu") {
      throw UserError(concat("--device ", options.device, ": --faults trains on the CPU, where jobs heal"));
    }
    return harm_and_test(options);
  }
  if (environment && options.ranks != 0 && options.ranks != environment->world_size) {
    throw UserError(concat("--ranks ", options.ranks, ", and the job was started with ", environment->world_size,
                           " ranks; leave --ranks out where a launcher starts them"));
  }
  const bool passed =
      environment ? test(options, *environment, join_world(*environment, wait_seconds)) : start_and_test(options);
  return passed ? 0 : failed;
}

}  // namespace

void add_selftest(CLI::App& program, CommandAction& action, RankJobs& jobs) {
  jobs["selftest"] = test_as_rank;
  auto options = std::make_shared<SelfTestCommandOptions>();
  CLI::App& selftest = *program.add_subcommand("selftest", about_selftest);
  selftest
      .add_option("--ranks", options->ranks,
                  "Ranks to start (default: one for each GPU, else up to 8 as there are cores); not under a launcher")
      ->check(number_in(Range<int64_t>{1, 1024}));
  selftest.add_option("--device", options->device, "cpu or cuda (default: cuda where there is one)")
      ->check(one_of({"cpu", "cuda"}));
  selftest.add_option("--seconds", options->seconds, "After which speeds and layouts that are left are left out")
      ->check(number_in(Range<double>{1e-3, 3600}))
      ->capture_default_str();
  selftest.add_flag("--json", options->json, "Print one JSON object");
  selftest
      .add_option("--faults", options->faults,
                  "Test healing in place of all this: strike training jobs so many times, in many ways; 3 to 6 s each")
      ->check(number_in(Range<int64_t>{1, 1000000}));
  selftest.add_option("--seed", options->seed, "Of the numbers that groups exchange, and of the faults")
      ->capture_default_str();
  selftest.footer(
      "Exit codes: 0 all is well, 1 something failed, 2 a mistake in what was given. Slow groups are told, and do not "
      "fail.\n"
      "Examples:\n"
      "  copus selftest --ranks 8\n"
      "  copus selftest --faults 50\n"
      "  torchrun --no-python --nproc-per-node 8 copus selftest\n"
      "  srun --ntasks-per-node 8 copus selftest --json");
  selftest.callback([options, &action] { action = [options] { return run_selftest(*options); }; });
}

}  // namespace copus
