// Runs of this program as processes, several at once, that end with the process that started them.
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
    size_t ended = 0;   // the number that start() has given the process, where no signal came
    int exit_code = 0;  // its exit code; 128 and the signal's number where a signal ended it
    int signal = 0;     // the stop signal that this process was sent; 0: none
  };

  // From here on the stop signals come as news and do nothing else. The process must have no other threads, which would
  // take the signals.
  ChildProcesses();
  ChildProcesses(const ChildProcesses&) = delete;
  ChildProcesses& operator=(const ChildProcesses&) = delete;
  ~ChildProcesses();  // kills those that still run

  // Starts this program with `arguments` and without input; what it prints is appended to `log`. The process has a
  // group of its own, so that a terminal's Ctrl-C comes here alone, and is killed when this process dies.
  // Throws UserError where it cannot be started.
  size_t start(const std::vector<std::string>& arguments, const std::filesystem::path& log);

  size_t running() const { return running_.size(); }
  // Of a process that runs.
  pid_t pid_of(size_t number) const;

  // What has happened since the last look; nothing where nothing has.
  std::optional<News> look();
  // Waits until a process has ended or a signal has come. Some process must be running.
  News wait();

  void send(int signal) const;  // to all that run

 private:
  sigset_t taken_{};
  sigset_t mask_before_{};
  void (*child_before_)(int) = SIG_DFL;
  std::map<pid_t, size_t> running_;
  size_t started_ = 0;

  std::optional<News> reap();
};

}  // namespace copus
