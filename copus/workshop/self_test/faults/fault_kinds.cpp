#include "copus/workshop/self_test/faults/fault_kinds.h"

#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>
#include <system_error>
#include <thread>

#include "copus/base/error.h"
#include "copus/comm/descriptor.h"

namespace copus {

namespace {

using std::chrono::milliseconds;

template <int Signal>
bool send_signal(int64_t pid) {
  return ::kill(static_cast<pid_t>(pid), Signal) == 0;
}

// The pause is much shorter than the time after which a rank counts as failed.
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

// Further mappings of memory throw std::bad_alloc.
bool take_memory(int64_t pid) { return set_limit(pid, RLIMIT_AS); }

// Returns the descriptor through which a rank receives its launcher's messages, as given in the rank's environment; -1
// if there is none.
int control_descriptor(int64_t pid) {
  std::ifstream environment(concat("/proc/", pid, "/environ"), std::ios::binary);
  const std::string name = "COPUS_CONTROL=";
  for (std::string variable; std::getline(environment, variable, '\0');) {
    if (variable.starts_with(name)) return std::stoi(variable.substr(name.size()));
  }
  return -1;
}

// The open file with this number in a process; not open if there is none.
Descriptor open_file_of(int64_t pid, int number) {
  if (number < 0) return Descriptor();
  const Descriptor process(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)));
  if (!process.is_open()) return Descriptor();
  return Descriptor(static_cast<int>(::syscall(SYS_pidfd_getfd, process.number(), number, 0)));
}

Descriptor control_socket(int64_t pid) { return open_file_of(pid, control_descriptor(pid)); }

// Finds the launcher's end of the socket pair. The two ends of a pair are made one right after the other. The system
// names open sockets by inode number, so the two ends have neighbouring numbers.
Descriptor launchers_end(int64_t pid) {
  struct stat ours{};
  const Descriptor socket = control_socket(pid);
  if (!socket.is_open() || ::fstat(socket.number(), &ours) != 0) return Descriptor();
  std::ifstream status(concat("/proc/", pid, "/stat"));
  std::string number, name, state;
  int64_t launcher = 0;
  status >> number >> name >> state >> launcher;  // our name has no spaces
  const std::string wanted = concat("socket:[", ours.st_ino - 1, "]");
  std::error_code error;
  for (const auto& file : std::filesystem::directory_iterator(concat("/proc/", launcher, "/fd"), error)) {
    if (std::filesystem::read_symlink(file, error) != wanted) continue;
    return open_file_of(launcher, std::stoi(file.path().filename().string()));
  }
  return Descriptor();
}

template <int Direction>
bool shut_control_socket(int64_t pid) {
  const Descriptor socket = control_socket(pid);
  return socket.is_open() && ::shutdown(socket.number(), Direction) == 0;
}

// Two invalid messages, one of them shorter than any valid one.
template <Descriptor End(int64_t pid)>
bool send_garbage(int64_t pid) {
  const Descriptor socket = End(pid);
  constexpr std::string_view garbage = "Once upon a time there was a process that nobody understood.";
  return socket.is_open() && ::send(socket.number(), garbage.data(), 3, MSG_DONTWAIT | MSG_NOSIGNAL) > 0 &&
         ::send(socket.number(), garbage.data(), garbage.size(), MSG_DONTWAIT | MSG_NOSIGNAL) > 0;
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
    {"told to leave", false, false, Aftermath::healed, send_signal<SIGTERM>},
    {"cut off from launcher", false, true, Aftermath::healed_or_unharmed, shut_control_socket<SHUT_RDWR>},
    {"deaf to launcher", false, true, Aftermath::healed_or_unharmed, shut_control_socket<SHUT_RD>},
    {"mute to launcher", false, true, Aftermath::healed_or_unharmed, shut_control_socket<SHUT_WR>},
    {"garbage to launcher", false, true, Aftermath::healed, send_garbage<control_socket>},
    {"garbage from launcher", false, true, Aftermath::healed_or_unharmed, send_garbage<launchers_end>},
    {"SIGINT at a rank", false, false, Aftermath::stopped, send_signal<SIGINT>},
    {"launcher SIGKILL", true, false, Aftermath::ended, send_signal<SIGKILL>},
    {"launcher SIGTERM", true, false, Aftermath::stopped, send_signal<SIGTERM>},
    {"launcher SIGINT", true, false, Aftermath::stopped, send_signal<SIGINT>},
    {"launcher stopped 0.3 s", true, false, Aftermath::unharmed, pause_briefly},
});

}  // namespace

std::span<const FaultKind> fault_kinds() { return kinds; }

}  // namespace copus
