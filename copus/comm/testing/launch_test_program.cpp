// A job for launcher_test.py without training: starts its ranks, or is one of them, and reduces numbers in a loop.
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <iostream>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "copus/base/error.h"
#include "copus/comm/health/shared_health.h"
#include "copus/comm/health/watchdog.h"
#include "copus/comm/job/launcher.h"
#include "copus/comm/world.h"

namespace copus {
namespace {

// Asks for the end of the job, as a run does (copus/train/stop_request.h).
volatile std::sig_atomic_t noted_signal = 0;
extern "C" void note_signal(int signal) { noted_signal = signal; }

// --name value, each a whole number.
class Options {
 public:
  explicit Options(const std::vector<std::string>& arguments) {
    for (size_t i = 0; i + 1 < arguments.size(); i += 2) values_[arguments[i]] = std::stoll(arguments[i + 1]);
  }
  int64_t get(const std::string& name, int64_t otherwise) const {
    const auto found = values_.find(name);
    return found == values_.end() ? otherwise : found->second;
  }
  // "--name RANK" is meant for this rank, in this step.
  bool strikes(const std::string& name, int64_t rank, int64_t step) const {
    return get(name, -1) == rank && get("--at", 0) == step;
  }

 private:
  std::map<std::string, int64_t> values_;
};

[[noreturn]] void compute_for_ever() {
  for (std::atomic<int64_t> i = 0;; ++i) {
  }
}

int run_rank(const RankEnvironment& environment, const Options& options) {
  const int64_t rank = environment.rank;
  if (options.get("--mistake-before", -1) == rank) throw UserError("there is no such file");
  if (options.get("--all-mistaken", 0) > 0) throw UserError("there is no such file");
  if (options.get("--absent", -1) == rank) std::this_thread::sleep_for(std::chrono::hours(1));
  std::signal(SIGTERM, note_signal);
  struct sigaction interrupt{};
  interrupt.sa_handler = note_signal;
  interrupt.sa_flags = SA_RESTART | static_cast<int>(SA_RESETHAND);
  sigaction(SIGINT, &interrupt, nullptr);

  const auto world = join_world(environment, static_cast<double>(options.get("--wait", 60)));
  std::unique_ptr<Watchdog> impatient;
  if (const int64_t seconds = options.get("--stall-seconds", 0); seconds > 0) {
    impatient = std::make_unique<Watchdog>(dynamic_cast<SharedHealth&>(world->health()),
                                           HealthLimits{.stall_seconds = static_cast<double>(seconds)});
  }
  world->health().set_expected_step_seconds(1e-3);
  Communicator& everyone = world->everyone();
  int64_t reason = 0;
  const int64_t steps = options.get("--steps", 100);
  for (int64_t step = 1; step <= steps && reason == 0; ++step) {
    world->health().set_place(concat("step ", step, ", all-reduce"));
    std::vector<int64_t> sums(1000, rank + step);
    everyone.all_reduce(sums.data(), static_cast<int64_t>(sums.size()), DataType::int64);
    const int64_t expected = world->size() * (world->size() - 1) / 2 + world->size() * step;
    for (const int64_t sum : sums) COPUS_CHECK(sum == expected, sum, " and not ", expected);

    world->health().set_place(concat("step ", step, ", rest"));
    if (options.strikes("--mistaken", rank, step)) throw UserError("the disk is full");
    if (options.strikes("--broken", rank, step)) COPUS_CHECK(false, "broken on purpose");
    if (options.strikes("--killed", rank, step)) ::raise(SIGKILL);
    if (options.strikes("--gone", rank, step)) ::_exit(0);
    if (options.strikes("--stalled", rank, step)) compute_for_ever();
    std::this_thread::sleep_for(std::chrono::milliseconds(options.get("--milliseconds", 0)));
    reason = noted_signal;
    everyone.all_reduce(&reason, 1, DataType::int64, Reduction::maximum);
    if (rank == 0 && step % 10 == 0) std::cout << "step " << step << '\n' << std::flush;
  }
  std::cerr << "done\n";
  if (reason == SIGINT) return 130;
  if (reason == SIGTERM) return 75;
  return static_cast<int>(options.get("--exit-code", 0));
}

int run(const std::vector<std::string>& arguments) {
  const Options options(arguments);
  try {
    if (const auto environment = read_rank_environment()) return run_rank(*environment, options);
    return launch_ranks(options.get("--ranks", 2), arguments);
  } catch (const UserError& error) {
    std::cerr << concat("copus: error: ", error.what(), "\n");
    return 2;
  } catch (const RankFailure& failure) {
    if (!failure.report().announced) std::cerr << concat("copus: error: ", failure.what(), "\n");
    return 1;
  } catch (const std::exception& error) {
    std::cerr << concat("copus: internal error: ", error.what(), "\n");
    return 1;
  }
}

}  // namespace
}  // namespace copus

int main(int argc, char** argv) { return copus::run({argv + 1, argv + argc}); }
