// Starts the ranks of a job as processes on this machine and monitors them until the last one has ended.
#include "copus/comm/job/start/launcher.h"

#include <sys/wait.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <utility>

#include "copus/base/error.h"
#include "copus/comm/health/process_state.h"
#include "copus/comm/health/rank_monitor.h"
#include "copus/comm/health/shared_health.h"
#include "copus/comm/job/healing/composition.h"
#include "copus/comm/job/start/rank_process.h"
#include "copus/comm/shared_memory/shared_memory_world.h"

namespace copus {

namespace {

using Clock = std::chrono::steady_clock;

// A longer time between two checks means that this process was stopped or did not get a processor. The ranks may have
// been stopped too, so the excess time does not count as their silence.
constexpr double longest_look = 0.5;

class Job {
 public:
  Job(int64_t size, const std::vector<std::string>& arguments)
      : size_(size),
        segment_(SharedSegment::create(size)),
        health_(segment_.health(), size, size),
        monitor_(health_, RankMonitor::Role::parent),
        processes_(arguments) {
    health_.become_launcher();
  }

  int run() {
    for (int64_t rank = 0; rank < size_; ++rank) start(rank);
    auto looked = Clock::now();
    while (!processes_.all_ended()) {
      processes_.wait_for_news({});
      processes_.take_signals();
      reap();
      processes_.forward_errors();
      const auto now = Clock::now();
      watch(std::chrono::duration<double>(now - looked).count());
      looked = now;
    }
    processes_.finish_errors();
    const auto concluded = [&](int64_t rank) {
      const RankProcess& process = processes_.all()[rank];
      return ConcludedProcess{process, process.errors.held_back(), rank == 0};
    };
    const ConcludedProcess first = concluded(0);
    const std::optional<FailureReport> failure = health_.failure();
    if (!failure) return WEXITSTATUS(first.end.status);
    std::optional<ConcludedProcess> failed;
    if (failure->rank >= 0) failed = concluded(failure->rank);
    return processes_.conclude(*failure, first, failed);
  }

 private:
  void start(int64_t rank) {
    const RankProcess& process =
        processes_.start({.number = rank,
                          .prefix = rank == 0 ? "" : concat("rank ", rank, ": "),
                          .variables = {concat("COPUS_RANK=", rank), concat("COPUS_WORLD_SIZE=", size_),
                                        concat("COPUS_SEGMENT=", segment_.descriptor())},
                          .inherited = {segment_.descriptor()}});
    health_.set_process(rank, process.pid);
  }

  void reap() {
    for (const RankProcess* process : processes_.reap()) {
      const int64_t rank = process->number;
      monitor_.forget(rank);
      const RankSigns signs = health_.signs_of(rank);
      if (const auto cause = processes_.judge_end(*process, signs.heartbeats > 0 && !signs.left)) {
        health_.report({rank, health_.place_of(rank), *cause});
      }
    }
  }

  void watch(double seconds) {
    if (const auto report = monitor_.look(seconds)) health_.report(*report);
    const std::optional<FailureReport> failure = health_.failure();
    if (!failure) return;
    ending_seconds_ = ending_seconds_ ? *ending_seconds_ + std::min(seconds, longest_look) : 0;
    for (RankProcess& process : processes_.all()) {
      if (process.ended) continue;
      const bool by_own_error = failure->rank == process.number && failure->cause == own_error_cause;
      const bool too_late = *ending_seconds_ > (by_own_error ? Composition::kill_after_own_error_seconds
                                                             : Composition::kill_after_seconds);
      // A stopped process cannot end by itself.
      if (too_late || process_state(process.pid) == ProcessState::stopped) process.signal(SIGKILL);
    }
  }

  const int64_t size_;
  SharedSegment segment_;
  SharedHealth health_;
  RankMonitor monitor_;
  RankProcesses processes_;
  std::optional<double> ending_seconds_;  // since this launcher noticed the failure
};

}  // namespace

std::unique_ptr<World> join_launched_ranks(const RankEnvironment& environment, double wait_seconds) {
  return join_shared_memory(
      std::make_shared<SharedSegment>(SharedSegment::open(Descriptor(environment.segment), environment.world_size)),
      environment.rank, environment.world_size, wait_seconds, true);
}

int launch_ranks(int64_t size, const std::vector<std::string>& arguments) {
  COPUS_CHECK(size >= 1, size);
  return Job(size, arguments).run();
}

}  // namespace copus
