#include "copus/comm/job/start/launcher_watch.h"

#include <unistd.h>

#include <chrono>
#include <condition_variable>
#include <csignal>
#include <mutex>
#include <string_view>
#include <thread>

#include "copus/base/error.h"
#include "copus/base/files/write_all.h"
#include "copus/comm/announcements.h"
#include "copus/comm/background_thread.h"
#include "copus/comm/job/start/parent_process.h"
#include "copus/comm/job/start/poll_timer.h"

namespace copus {

namespace {

constexpr auto look_at_launcher_after = std::chrono::milliseconds(50);
// How long a rank waits between noticing that the launcher is gone and ending. By then all ranks of the machine have
// noticed it too. If a rank ended sooner, the others would report its end as a failure.
constexpr auto until_all_know = std::chrono::milliseconds(400);

class LauncherWatch {
 public:
  explicit LauncherWatch(const RankEnvironment& environment)
      : ends_with_launcher_(environment.has_agent), speaks_(environment.local_rank == 0) {
    thread_ = background_thread([this] { watch(); });
  }
  LauncherWatch(const LauncherWatch&) = delete;
  LauncherWatch& operator=(const LauncherWatch&) = delete;
  ~LauncherWatch() {
    {
      const std::scoped_lock lock(mutex_);
      stopping_ = true;
    }
    changed_.notify_one();
    thread_.join();
  }

 private:
  // Waits for `time`. Returns true if this process ends meanwhile.
  bool pause(std::chrono::milliseconds time) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, time, [this] { return stopping_; });
  }

  void tell(std::string_view begin, std::string_view what) const {
    if (!speaks_) return;
    write_all(STDERR_FILENO,
              concat(begin, "the process that has started this one (pid ", parent_.pid(), ") is ", what));
  }

  void watch() {
    PollTimer timer;
    while (!pause(look_at_launcher_after)) {
      if (parent_.has_stopped(timer.next())) {
        tell("copus: ",
             "stopped (SIGSTOP); training goes on, but until that process does too nobody passes signals on "
             "or sees to ranks that fail\n");
      }
      if (!ends_with_launcher_ || !parent_.is_gone()) continue;
      announce_no_more();
      tell("copus: error: ", "gone; the job is told to end, as by SIGTERM\n");
      if (!pause(until_all_know)) ::kill(::getpid(), SIGTERM);
      return;
    }
  }

  ParentProcess parent_;
  const bool ends_with_launcher_, speaks_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace

void watch_launcher(const RankEnvironment& environment) {
  const bool has_launcher = environment.has_agent || environment.launcher == LauncherKind::copus;
  if (!has_launcher || environment.lifeline >= 0) return;
  static const LauncherWatch watch(environment);
}

}  // namespace copus
