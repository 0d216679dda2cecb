#include "copus/workshop/self_test/faults/fault_kinds.h"

#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <csignal>
#include <fstream>
#include <string>
#include <thread>

#include "copus/base/error.h"
#include "copus/comm/descriptor.h"

namespace copus {

namespace {

using std::chrono::milliseconds;

template <int signal>
bool send_signal(int64_t pid) {
  return ::kill(static_cast<pid_t>(pid), signal) == 0;
}

// Much shorter than what makes a rank count as failed.
bool pause_briefly(int64_t pid) {
  if (!send_signal<SIGSTOP>(pid)) return false;
  std::this_thread::sleep_for(milliseconds(300));
  send_signal<SIGCONT>(pid);
  return true;
}

bool slow_down_tenfold(int64_t pid) {
  for (int i = 0; i < 200; ++i) {
    if (!send_signal<SIGSTOP>(pid)) return i > 0;
    std::this_thread::sleep_for(milliseconds(9));
    send_signal<SIGCONT>(pid);
    std::this_thread::sleep_for(milliseconds(1));
  }
  return true;
}

bool set_limit(int64_t pid, __rlimit_resource resource) {
  const rlimit nothing{0, 0};
  return ::prlimit(static_cast<pid_t>(pid), resource, &nothing, nullptr) == 0;
}

// Whatever maps memory from now on throws std::bad_alloc.
bool take_memory(int64_t pid) { return set_limit(pid, RLIMIT_AS); }

// Whoever writes to a file from now on is ended by SIGXFSZ.
bool take_files(int64_t pid) { return set_limit(pid, RLIMIT_FSIZE); }

// The descriptor by which a rank hears its launcher, as the rank was told in its environment; -1 where there is none.
int control_descriptor(int64_t pid) {
  std::ifstream environment(concat("/proc/", pid, "/environ"), std::ios::binary);
  const std::string name = "COPUS_CONTROL=";
  for (std::string variable; std::getline(environment, variable, '\0');) {
    if (variable.starts_with(name)) return std::stoi(variable.substr(name.size()));
  }
  return -1;
}

template <int direction>
bool shut_control_socket(int64_t pid) {
  const int number = control_descriptor(pid);
  if (number < 0) return false;
  const Descriptor process(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)));
  if (!process.is_open()) return false;
  const Descriptor socket(static_cast<int>(::syscall(SYS_pidfd_getfd, process.number(), number, 0)));
  return socket.is_open() && ::shutdown(socket.number(), direction) == 0;
}

constexpr std::array kinds = std::to_array<FaultKind>({
    {"SIGKILL", false, true, Aftermath::healed, send_signal<SIGKILL>},
    {"SIGSEGV", false, true, Aftermath::healed, send_signal<SIGSEGV>},
    {"SIGABRT", false, true, Aftermath::healed, send_signal<SIGABRT>},
    {"SIGBUS", false, true, Aftermath::healed, send_signal<SIGBUS>},
    {"stopped for good", false, true, Aftermath::healed, send_signal<SIGSTOP>},
    {"stopped for 0.3 s", false, true, Aftermath::unharmed, pause_briefly},
    {"slow by 10x for 2 s", false, true, Aftermath::unharmed, slow_down_tenfold},
    {"no memory", false, true, Aftermath::healed_or_unharmed, take_memory},
    {"no room for files", false, true, Aftermath::healed_or_unharmed, take_files},
    {"told to leave", false, false, Aftermath::healed, send_signal<SIGTERM>},
    {"cut off from launcher", false, true, Aftermath::healed_or_unharmed, shut_control_socket<SHUT_RDWR>},
    {"deaf to launcher", false, true, Aftermath::healed_or_unharmed, shut_control_socket<SHUT_RD>},
    {"mute to launcher", false, true, Aftermath::healed_or_unharmed, shut_control_socket<SHUT_WR>},
    {"SIGINT at a rank", false, false, Aftermath::stopped, send_signal<SIGINT>},
    {"launcher SIGKILL", true, false, Aftermath::ended, send_signal<SIGKILL>},
    {"launcher SIGTERM", true, false, Aftermath::stopped, send_signal<SIGTERM>},
    {"launcher SIGINT", true, false, Aftermath::stopped, send_signal<SIGINT>},
    {"launcher stopped 0.3 s", true, false, Aftermath::unharmed, pause_briefly},
});

}  // namespace

std::span<const FaultKind> fault_kinds() { return kinds; }

}  // namespace copus
