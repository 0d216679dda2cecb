// Runs several processes of this program at the same time. They end with the process that started them.
#pragma once

#include <signal.h>  // sigset_t, which <csignal> need not declare
#include <sys/types.h>

#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace copus {

class ChildProcesses {
 public:
  struct News {
    size_t ended = 0;   // the ended process' number, as returned by start(); unused if a signal came
    int exit_code = 0;  // its exit code; 128 + the signal's number if a signal ended it
    int signal = 0;     // the stop signal that this process received; 0: none
  };

  // From now on, stop signals are only reported as News and have no other effect. The process must have no other
  // threads, because they would receive the signals.
  ChildProcesses();
  ChildProcesses(const ChildProcesses&) = delete;
  ChildProcesses& operator=(const ChildProcesses&) = delete;
  ~ChildProcesses();  // kills those still running

  // Starts this program with `arguments` and without input. Its output is appended to `log`. The child has its own
  // process group, so a terminal's Ctrl-C reaches only the parent. The child is killed when the parent dies. Throws
  // UserError if the child cannot be started.
  size_t start(const std::vector<std::string>& arguments, const std::filesystem::path& log);

  size_t running() const { return running_.size(); }
  // For a running process.
  pid_t pid_of(size_t number) const;

  // Returns what happened since the last call, or nothing.
  std::optional<News> look();
  // Waits until a process ends or a signal arrives. Some process must be running.
  News wait();

  void send(int signal) const;  // to all running processes

 private:
  sigset_t taken_{};
  sigset_t mask_before_{};
  void (*child_before_)(int) = SIG_DFL;
  std::map<pid_t, size_t> running_;
  size_t started_ = 0;

  std::optional<News> reap();
};

}  // namespace copus
