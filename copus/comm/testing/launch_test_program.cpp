// A job without training for launcher_test.py and healing_test.py: it starts its ranks, or is one of them, and reduces
// numbers in a loop.
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <iterator>
#include <map>
#include <memory>
#include <numeric>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "copus/base/error.h"
#include "copus/comm/first_ranks_world.h"
#include "copus/comm/health/shared_health.h"
#include "copus/comm/health/watchdog.h"
#include "copus/comm/job/meeting/meeting_place.h"
#include "copus/comm/job/member/membership.h"
#include "copus/comm/job/start/launcher.h"
#include "copus/comm/job/start/launcher_watch.h"
#include "copus/comm/world.h"

namespace copus {
namespace {

// Requests the end of the job, as in a run (copus/train/step/stop_request.h).
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
  // Whether "--name RANK" is given for this rank in this step.
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

void take_signals() {
  std::signal(SIGTERM, note_signal);
  struct sigaction interrupt{};
  interrupt.sa_handler = note_signal;
  interrupt.sa_flags = SA_RESTART | static_cast<int>(SA_RESETHAND);
  sigaction(SIGINT, &interrupt, nullptr);
}

int run_rank(const RankEnvironment& environment, const Options& options) {
  const int64_t rank = environment.rank;
  if (options.get("--mistake-before", -1) == rank) throw UserError("there is no such file");
  if (options.get("--all-mistaken", 0) > 0) throw UserError("there is no such file");
  if (options.get("--absent", -1) == rank) std::this_thread::sleep_for(std::chrono::hours(1));
  if (options.get("--stopped-before", -1) == rank) ::raise(SIGSTOP);
  take_signals();

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

// Prints a line for the test in a single write.
void say(const std::string& line) { std::cout << concat(line, "\n") << std::flush; }

std::string listed(const std::vector<int64_t>& numbers) {
  std::string list;
  for (const int64_t number : numbers) list += concat(list.empty() ? "" : ",", number);
  return list;
}

// A folder with a file for each name, because programs without libtorch have no store.
class MeetingFolder {
 public:
  explicit MeetingFolder(std::filesystem::path folder) : folder_(std::move(folder)) {}

  void publish(const std::string& name, const std::string& text) const {
    const std::filesystem::path unfinished = folder_ / concat(file_of(name), ".", ::getpid());
    std::ofstream(unfinished) << text;
    std::filesystem::rename(unfinished, folder_ / file_of(name));
  }

  std::optional<std::string> find(const std::string& name) const {
    std::ifstream file(folder_ / file_of(name));
    if (!file) return std::nullopt;
    return std::string(std::istreambuf_iterator<char>(file), {});
  }

 private:
  static std::string file_of(std::string name) {
    std::ranges::replace(name, '/', '_');
    return name;
  }

  const std::filesystem::path folder_;
};

// Where machines of a job meet: the folder TEST_MEETING, or a store if that is not set.
OpenMeetingPlace meeting_place() {
  const char* const folder = std::getenv("TEST_MEETING");
  if (folder == nullptr) return open_store;
  return [place = MeetingFolder(folder)](const MeetingAddress& /*address*/) {
    return MeetingPlace{[place](const std::string& name, const std::string& text) { place.publish(name, text); },
                        [place](const std::string& name) { return place.find(name); }};
  };
}

// A rank of a job whose ranks come and go. With --used RANKS, ranks from this number on are spares. With --begins 0,
// the launcher is never told that training has begun.
class HealingRank {
 public:
  HealingRank(const RankEnvironment& environment, const Options& options)
      : options_(options), membership_(environment, static_cast<double>(options.get("--wait", 60)), meeting_place()) {}

  // Returns the exit code.
  int run() {
    while (true) {
      std::unique_ptr<World> world = membership_.join_next();
      if (world == nullptr) {
        say(concat("process ", membership_.process(), " goes"));
        return 0;
      }
      try {
        if (const auto code = run_epoch(*world)) return *code;
      } catch (const RankFailure& failure) {
        say(concat("process ", membership_.process(), " sees that ", failure.what()));
      }
      if (options_.get("--dawdles", -1) == membership_.process()) compute_for_ever();
    }
  }

 private:
  // Returns the exit code if the job is done, and nothing if the epoch is to end.
  std::optional<int> run_epoch(World& world) {
    const Epoch& epoch = membership_.epoch();
    COPUS_CHECK(epoch.processes.at(world.rank()) == membership_.process() &&
                world.size() == std::ssize(epoch.processes));
    if (world.rank() == 0) {
      std::string lost;
      for (const auto& [process, report] : epoch.lost) lost += concat("; lost ", process, ": ", to_string(report));
      say(concat("epoch ", epoch.number, " at ", world.clock().now(), " of ", listed(epoch.processes), lost));
    }
    const int64_t used = std::min(world.size(), options_.get("--used", world.size()));
    if (world.rank() >= used) {
      membership_.wait_as_spare(world, [this] { return noted_signal != 0 && !std::exchange(asked_, true); });
      return std::nullopt;
    }
    return work(*first_ranks(world, used));
  }

  std::optional<int> work(World& world) {
    const std::vector<int64_t>& processes = membership_.epoch().processes;
    const int64_t sum = std::accumulate(processes.begin(), processes.begin() + world.size(), int64_t{0});
    Communicator& everyone = world.everyone();
    world.health().set_expected_step_seconds(1e-3);
    everyone.all_reduce(&step_, 1, DataType::int64, Reduction::maximum);  // newcomers start at the step of the others
    if (world.rank() == 0 && options_.get("--begins", 1) > 0) membership_.leave_note("steps");
    for (const int64_t last = options_.get("--steps", 100); step_ <= last; ++step_) {
      world.health().set_place(concat("step ", step_));
      std::vector<int64_t> sums(1000, membership_.process() + step_);
      everyone.all_reduce(sums.data(), std::ssize(sums), DataType::int64);
      for (const int64_t one : sums) COPUS_CHECK(one == sum + world.size() * step_, one);
      strike();
      std::this_thread::sleep_for(std::chrono::milliseconds(options_.get("--milliseconds", 0)));
      // If all ranks get the signal, it is meant for the job; before that, only for the ranks that have it.
      if (noted_signal != 0 && !std::exchange(asked_, true)) membership_.ask_to_leave();
      std::array<int64_t, 2> agreed{world.rank() == 0 && membership_.regroup_wanted() ? 1 : 0, -noted_signal};
      everyone.all_reduce(agreed.data(), std::ssize(agreed), DataType::int64, Reduction::maximum);
      if (world.rank() == 0 && step_ % options_.get("--every", 10) == 0) say(concat("step ", step_));
      if (agreed[1] != 0) {
        say(concat("process ", membership_.process(), " ends as it was told"));
        return agreed[1] == -SIGINT ? 130 : 75;
      }
      if (agreed[0] != 0) {
        ++step_;
        return std::nullopt;
      }
    }
    return 0;
  }

  // The fault that a test requests for this process in this step.
  void strike() {
    const int64_t process = membership_.process();
    if (options_.strikes("--killed", process, step_)) ::raise(SIGKILL);
    if (options_.strikes("--stopped", process, step_)) ::raise(SIGSTOP);
    if (options_.strikes("--mistaken", process, step_)) throw UserError("the disk is full");
    if (options_.strikes("--broken", process, step_)) COPUS_CHECK(false, "broken on purpose");
    if (options_.strikes("--stalled", process, step_)) compute_for_ever();
  }

  const Options& options_;
  Membership membership_;
  int64_t step_ = 1;
  bool asked_ = false;
};

int run_healing_rank(const RankEnvironment& environment, const Options& options) {
  if (options.get("--mistake-before", -1) == environment.process) throw UserError("there is no such file");
  if (options.get("--newcomers-die", 0) > 0 && environment.process >= environment.world_size) ::raise(SIGKILL);
  take_signals();
  watch_launcher(environment);
  return HealingRank(environment, options).run();
}

int run(const std::vector<std::string>& arguments) {
  const Options options(arguments);
  try {
    if (const auto environment = read_rank_environment()) {
      return environment->control < 0 ? run_rank(*environment, options) : run_healing_rank(*environment, options);
    }
    const int64_t ranks = options.get("--ranks", 2);
    if (options.get("--heals", 0) == 0) return launch_ranks(ranks, arguments);
    const Healing healing{.replaces = options.get("--replaces", 1) > 0, .restarts = options.get("--restarts", 0)};
    const char* const machine = std::getenv("TEST_MACHINE");
    if (machine == nullptr) return launch_healing_ranks(ranks, arguments, healing);
    const char* const address = std::getenv("TEST_ADDRESS");
    return launch_healing_machine({.machine = std::stoll(machine),
                                   .num_machines = options.get("--machines", 2),
                                   .ranks_per_machine = ranks,
                                   .address = address == nullptr ? "127.0.0.1" : address,
                                   .port = options.get("--port", 1),
                                   .attempt = "test/0",
                                   .serves_store = std::stoll(machine) == 0},
                                  arguments, healing, meeting_place());
  } catch (const UserError& error) {
    // Simulates a process that waits for a processor after it has reported its error to the others.
    std::this_thread::sleep_for(std::chrono::milliseconds(options.get("--milliseconds-to-end", 0)));
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
