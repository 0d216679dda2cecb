#include "copus/train/step/stop_request.h"

#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <ctime>
#include <string_view>

#include "copus/base/error.h"
#include "copus/base/files/write_all.h"
#include "copus/base/process/stop_signals.h"
#include "copus/comm/job/start/job_start.h"

namespace copus {

namespace {

// Global, because signal handlers can use nothing else.
volatile std::sig_atomic_t noted_signal = 0;  // the first signal received; 0: none
volatile std::sig_atomic_t asked = 0;         // whether SIGINT or SIGTERM has been received
volatile std::sig_atomic_t speaks_to_user = 0;
volatile std::sig_atomic_t is_on_terminal = 0;
timespec asked_at{};

constexpr double repeated_within_seconds = 1;

timespec now() {
  timespec time{};
  clock_gettime(CLOCK_MONOTONIC, &time);
  return time;
}

double seconds_since_asked() {
  const timespec time = now();
  return static_cast<double>(time.tv_sec - asked_at.tv_sec) +
         1e-9 * static_cast<double>(time.tv_nsec - asked_at.tv_nsec);
}

// Limited to a minute, because a spare process may have waited for hours before it joined.
double seconds_since_own_start() {
  constexpr double most = 60;
  const auto start = process_start(getpid());
  if (!start) return 0;
  return std::min(most, std::chrono::duration<double>(std::chrono::steady_clock::now() - *start).count());
}

// Prints nothing if nobody reads the output: a second signal could not end a blocked handler.
void say_what_it_does(int signal) {
  pollfd user{STDOUT_FILENO, POLLOUT, 0};
  if (poll(&user, 1, 0) != 1 || (user.revents & POLLOUT) == 0) return;
  constexpr std::string_view interrupt = "Ctrl-C: stops after this step; a second one ends it at once, ";
  constexpr std::string_view terminate = "SIGTERM: stops after this step; a second one ends it at once, ";
  constexpr std::string_view notice = ": stops after this step; SIGTERM twice ends it at once, ";
  if (is_on_terminal != 0) write_all(STDOUT_FILENO, "\n");  // below the live line
  if (is_notice(signal))
    write_all(STDOUT_FILENO, signal == SIGHUP ? "SIGHUP" : signal == SIGUSR1 ? "SIGUSR1" : "SIGUSR2");
  write_all(STDOUT_FILENO, is_notice(signal) ? notice : signal == SIGINT ? interrupt : terminate);
  write_all(STDOUT_FILENO, "without a checkpoint\n");
}

// Calls only async-signal-safe functions. A SIGTERM that the process sends to itself, because its launcher is gone,
// does not count as a user's second SIGTERM.
extern "C" void note_signal(int signal, siginfo_t* sent, void* /*context*/) {
  const int before = errno;
  const bool is_first = noted_signal == 0;
  if (is_notice(signal) || asked == 0) {
    if (!is_notice(signal)) {
      asked_at = now();  // first, because another thread may receive a signal at the same time
      asked = 1;
    }
    if (is_first) {
      noted_signal = signal;
      if (speaks_to_user != 0) say_what_it_does(signal);
    }
  } else {
    const bool by_itself = sent->si_code == SI_USER && sent->si_pid == getpid();
    const bool is_repeated = signal == SIGTERM && seconds_since_asked() < repeated_within_seconds;
    if (!by_itself && !is_repeated) {
      std::signal(signal, SIG_DFL);
      std::raise(signal);  // delivered when this handler returns; ends the process
    }
  }
  errno = before;
}

// Used instead of SIG_IGN: programs that this process starts would inherit SIG_IGN, and stop_signals() would read it as
// the user's wish (nohup).
extern "C" void ignore_signal(int /*signal*/) {}

}  // namespace

StopRequest::StopRequest(double max_seconds, std::chrono::steady_clock::time_point start)
    : signals_(stop_signals()), start_(start), max_seconds_(max_seconds), seconds_to_end_(seconds_since_own_start()) {
  noted_signal = 0;
  asked = 0;
  speaks_to_user = 0;
  is_on_terminal = isatty(STDOUT_FILENO);
  struct sigaction action{};
  action.sa_sigaction = note_signal;
  sigemptyset(&action.sa_mask);
  action.sa_flags = SA_RESTART | SA_SIGINFO;
  for (const int number : signals_) sigaddset(&action.sa_mask, number);
  for (const int number : signals_) COPUS_CHECK(sigaction(number, &action, nullptr) == 0);
}

StopRequest::~StopRequest() {
  for (const int number : signals_) std::signal(number, noted_signal != 0 ? ignore_signal : SIG_DFL);
}

void StopRequest::tell_user(bool tells) { speaks_to_user = tells ? 1 : 0; }

StopReason StopRequest::reason(double reserve_seconds) const {
  if (noted_signal == SIGINT) return StopReason::interrupt;
  if (noted_signal != 0) return StopReason::terminate;
  return has_time_for(reserve_seconds) ? StopReason::none : StopReason::time_limit;
}

bool StopRequest::has_time_for(double seconds) const {
  if (max_seconds_ <= 0) return true;
  const std::chrono::duration<double> passed = std::chrono::steady_clock::now() - start_;
  return passed.count() + seconds + seconds_to_end_ < max_seconds_;
}

}  // namespace copus
