#include "copus/train/stop_request.h"

#include <csignal>

#include "copus/base/error.h"

namespace copus {

namespace {

// Global because a signal handler can reach nothing else.
volatile std::sig_atomic_t noted_signal = 0;

extern "C" void note_signal(int signal) { noted_signal = signal; }

}  // namespace

StopRequest::StopRequest(double max_seconds, std::chrono::steady_clock::time_point start)
    : start_(start), max_seconds_(max_seconds) {
  noted_signal = 0;
  struct sigaction action{};
  action.sa_handler = note_signal;
  sigemptyset(&action.sa_mask);
  action.sa_flags = SA_RESTART;
  COPUS_CHECK(sigaction(SIGTERM, &action, nullptr) == 0);
  action.sa_flags |= SA_RESETHAND;  // lets a second SIGINT end the process
  COPUS_CHECK(sigaction(SIGINT, &action, nullptr) == 0);
}

StopRequest::~StopRequest() {
  std::signal(SIGINT, SIG_DFL);
  std::signal(SIGTERM, SIG_DFL);
}

StopReason StopRequest::reason(double reserve_seconds) const {
  if (noted_signal == SIGINT) return StopReason::interrupt;
  if (noted_signal == SIGTERM) return StopReason::terminate;
  if (max_seconds_ > 0) {
    const std::chrono::duration<double> passed = std::chrono::steady_clock::now() - start_;
    if (passed.count() + reserve_seconds >= max_seconds_) return StopReason::time_limit;
  }
  return StopReason::none;
}

}  // namespace copus
