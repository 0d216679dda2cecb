#include "copus/base/process/stop_signals.h"

#include <algorithm>
#include <array>
#include <csignal>

namespace copus {

namespace {

constexpr std::array notices = {SIGHUP, SIGUSR1, SIGUSR2};

}  // namespace

bool is_notice(int signal) { return std::ranges::count(notices, signal) > 0; }

std::vector<int> stop_signals() {
  std::vector<int> signals = {SIGINT, SIGTERM};
  for (const int notice : notices) {
    struct sigaction action{};
    const bool is_ignored = ::sigaction(notice, nullptr, &action) == 0 && action.sa_handler == SIG_IGN;
    if (!is_ignored) signals.push_back(notice);
  }
  return signals;
}

}  // namespace copus
