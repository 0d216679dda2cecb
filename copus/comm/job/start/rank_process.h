// Manages the processes that a launcher starts as the ranks of a job: how they start and end, where their stderr goes,
// and how signals are forwarded to them.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <csignal>
#include <cstdint>
#include <deque>
#include <filesystem>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "copus/comm/descriptor.h"
#include "copus/comm/rank_failure.h"

namespace copus {

// Exit codes (apps/copus/program.h).
inline constexpr int failed_job = 1;
inline constexpr int users_mistake = 2;
inline constexpr int asked_to_stop = 75;  // after SIGTERM or a time limit
inline constexpr int interrupted = 130;
inline constexpr int cannot_execute = 127;

// While this object lives, these signals are read from a descriptor and have no other effect, provided that no other
// thread receives them.
class SignalSource {
 public:
  SignalSource();
  SignalSource(const SignalSource&) = delete;
  SignalSource& operator=(const SignalSource&) = delete;
  ~SignalSource();

  int descriptor() const { return descriptor_.number(); }
  const sigset_t& mask_before() const { return before_; }
  std::optional<int> next() const;

 private:
  sigset_t before_{};
  void (*child_before_)(int) = SIG_DFL;
  Descriptor descriptor_;
};

// Forwards a rank's stderr, and puts the rank before each line. All ranks find the same mistakes of the user, so
// messages about these are held back on all ranks except the first.
class ErrorLines {
 public:
  // `source` is not open if the process writes directly to the launcher's stderr.
  ErrorLines(std::string prefix, Descriptor source) : prefix_(std::move(prefix)), source_(std::move(source)) {}

  int descriptor() const { return source_.number(); }
  const std::string& held_back() const { return held_back_; }

  // Sets the prefix when the process becomes another rank. The prefix is empty for the job's first rank.
  void set_prefix(std::string prefix) { prefix_ = std::move(prefix); }
  // Forwards everything that is available, without waiting.
  void forward();
  void finish();

 private:
  void print_lines(std::string_view lines);

  std::string prefix_;
  Descriptor source_;
  std::string text_;
  std::string held_back_;
};

// Whether and how a process has ended.
struct ProcessEnd {
  bool ended = false;
  int status = 0;  // as from waitpid

  bool exited_with(int code) const;
  bool killed_by(const std::set<int>& signals) const;
};

struct RankProcess : ProcessEnd {
  RankProcess(int64_t its_number, pid_t its_pid, ErrorLines its_errors)
      : number(its_number), pid(its_pid), errors(std::move(its_errors)) {}

  // Sends a signal to the process, unless it has ended.
  void signal(int number_of_signal);

  int64_t number;
  pid_t pid;
  ErrorLines errors;
  std::optional<std::chrono::steady_clock::time_point> killed_at;
};

// The properties of a process that conclude() needs.
struct ConcludedProcess {
  ProcessEnd end;
  std::string held_back;     // its message about a user's mistake, if it was not forwarded
  bool speaks_here = false;  // whether its messages about user's mistakes are forwarded immediately
};

struct RankStart {
  int64_t number = 0;
  std::string prefix;                  // of its lines on stderr; empty: it writes directly to the launcher's stderr
  std::vector<std::string> variables;  // NAME=value, in addition to the launcher's own
  std::vector<int> inherited;          // descriptors that exec must not close
};

// The ranks' processes. They are children of this process in their own process group, so a terminal sends Ctrl-C only
// to the launcher, which forwards it once. This object must be constructed before this process starts threads, because
// those threads would receive the signals. The destructor ends all processes, except those that hang in the kernel.
class RankProcesses {
 public:
  // How long a killed process may take to end. After this time it is treated as ended: it hangs in the kernel, for
  // example because a network file system does not answer, and will never compute again.
  static constexpr std::chrono::seconds ends_within{10};

  // `arguments`: the command line of this program, with which each rank is started.
  explicit RankProcesses(const std::vector<std::string>& arguments);
  RankProcesses(const RankProcesses&) = delete;
  RankProcesses& operator=(const RankProcesses&) = delete;
  ~RankProcesses();

  // The returned reference stays valid. Throws UserError if the system cannot start another process.
  RankProcess& start(const RankStart& start);

  std::deque<RankProcess>& all() { return processes_; }
  bool all_ended() const;
  // Returns the processes that have ended since the last call. Killed processes that hang for too long count as ended.
  std::vector<RankProcess*> reap();
  // Returns when there is a signal or output, when one of the descriptors `others` is readable, or when it is time for
  // the next check.
  void wait_for_news(const std::vector<int>& others) const;
  // Reads pending signals. Forwards and returns those that are meant for all ranks (see passed_on()).
  std::vector<int> take_signals();
  // Forwards a signal that the deciding launcher has received. A signal that is sent to all machines reaches this
  // launcher twice: directly and from the deciding launcher. The ranks must get it only once, because a second SIGINT
  // would kill them.
  void pass_on_from_above(int signal);
  void forward_errors();
  void finish_errors();

  const std::set<int>& passed_on() const { return passed_on_; }
  // Returns why the end of a process is a failure; nothing if the process ended well. `in_the_middle`: the process had
  // not left the job.
  std::optional<std::string> judge_end(const ProcessEnd& process, bool in_the_middle) const;
  // Reports a failed job to the user and returns the job's exit code. `first` is rank 0 of the job. `failed` is the
  // process that the report names, if any.
  int conclude(const FailureReport& failure, const ConcludedProcess& first,
               const std::optional<ConcludedProcess>& failed) const;

 private:
  [[noreturn]] void become_rank(pid_t launcher, int errors, const std::vector<int>& inherited,
                                const std::vector<char*>& arguments, const std::vector<char*>& variables) const;
  // How often a signal has arrived in each of the two ways.
  struct Arrivals {
    int64_t here = 0, from_above = 0;
    int64_t passed_on = 0;
  };
  void pass_on(int signal);
  void signal_all(int signal);

  const std::filesystem::path program_;
  std::vector<std::string> arguments_;
  const std::string start_of_job_;  // the variable with the job's start
  SignalSource signals_;
  pid_t group_ = 0;
  std::deque<RankProcess> processes_;
  std::map<int, Arrivals> arrivals_;
  std::set<int> passed_on_;
};

}  // namespace copus
