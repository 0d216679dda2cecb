// The processes that a launcher starts as the ranks of a job: how they start, what they write to stderr, which signals
// they are passed, and how they end.
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

// While it lives, these signals are read from a descriptor and do nothing else, provided no other thread takes them.
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

// Passes on what a rank writes to stderr, with the rank before each line. Messages about mistakes of the user are held
// back, since all ranks find the same ones and the first prints them.
class ErrorLines {
 public:
  // `source` is not open where the process has the launcher's stderr itself.
  ErrorLines(std::string prefix, Descriptor source) : prefix_(std::move(prefix)), source_(std::move(source)) {}

  int descriptor() const { return source_.number(); }
  const std::string& held_back() const { return held_back_; }

  // From now on it is another rank that speaks, or with an empty prefix the first of all.
  void set_prefix(std::string prefix) { prefix_ = std::move(prefix); }
  // Passes on everything that is there now, without waiting.
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
  int status = 0;  // as waitpid gives it

  bool exited_with(int code) const;
  bool killed_by(const std::set<int>& signals) const;
};

struct RankProcess : ProcessEnd {
  RankProcess(int64_t its_number, pid_t its_pid, ErrorLines its_errors)
      : number(its_number), pid(its_pid), errors(std::move(its_errors)) {}

  // Sends it a signal, if it has not ended.
  void signal(int number_of_signal);

  int64_t number;
  pid_t pid;
  ErrorLines errors;
  std::optional<std::chrono::steady_clock::time_point> killed_at;
};

// What conclude() has to know of a process.
struct ConcludedProcess {
  ProcessEnd end;
  std::string held_back;     // what it said of a mistake of the user that has not been passed on
  bool speaks_here = false;  // what it says of mistakes is passed on at once
};

struct RankStart {
  int64_t number = 0;
  std::string prefix;                  // of what it writes to stderr; empty: it has the launcher's stderr itself
  std::vector<std::string> variables;  // NAME=value, besides the launcher's own
  std::vector<int> inherited;          // descriptors that exec does not close
};

// They are children of this process, in a process group of their own: a terminal then sends Ctrl-C to the launcher
// alone, which passes it on once. This process must have no threads that were started before it, which would take the
// signals. At its end none of them is left, but for those that hang in the kernel.
class RankProcesses {
 public:
  // How long a process may take to end once it has been killed. One that hangs in the kernel, for a network file system
  // that does not answer, never computes again, and counts as ended then.
  static constexpr std::chrono::seconds ends_within{10};

  // `arguments` are those of this program, which is what each process runs.
  explicit RankProcesses(const std::vector<std::string>& arguments);
  RankProcesses(const RankProcesses&) = delete;
  RankProcesses& operator=(const RankProcesses&) = delete;
  ~RankProcesses();

  // Gives what stays where it is. Throws UserError where the system starts no further process.
  RankProcess& start(const RankStart& start);

  std::deque<RankProcess>& all() { return processes_; }
  bool all_ended() const;
  // The processes that have ended since the last call, and those that count as ended now: they were killed and hang.
  std::vector<RankProcess*> reap();
  // Returns when a signal, output or something from `others` has come, or when it is time to look again.
  void wait_for_news(const std::vector<int>& others) const;
  // Reads the signals that have come, and passes on those that are meant for all (see passed_on()), which it returns.
  std::vector<int> take_signals();
  // Passes on one that came to the launcher that decides. Where a signal is sent to all machines it comes on both ways,
  // and the ranks, which a second SIGINT would kill, get it once.
  void pass_on_from_above(int signal);
  void forward_errors();
  void finish_errors();

  const std::set<int>& passed_on() const { return passed_on_; }
  // Why the end of a process is a failure; empty where it is none. `in_the_middle`: before it left the job.
  std::optional<std::string> judge_end(const ProcessEnd& process, bool in_the_middle) const;
  // Tells the user what there is to tell of a job that has failed, and gives its exit code. `first`: its rank 0;
  // `failed`: the process that the report names, where it names one.
  int conclude(const FailureReport& failure, const ConcludedProcess& first,
               const std::optional<ConcludedProcess>& failed) const;

 private:
  [[noreturn]] void become_rank(pid_t launcher, int errors, const std::vector<int>& inherited,
                                const std::vector<char*>& arguments, const std::vector<char*>& variables) const;
  // How often a signal has come.
  struct Arrivals {
    int64_t here = 0, from_above = 0;
    int64_t passed_on = 0;
  };
  void pass_on(int signal);
  void signal_all(int signal);

  const std::filesystem::path program_;
  std::vector<std::string> arguments_;
  const std::string start_of_job_;  // the variable that tells it
  SignalSource signals_;
  pid_t group_ = 0;
  std::deque<RankProcess> processes_;
  std::map<int, Arrivals> arrivals_;
  std::set<int> passed_on_;
};

}  // namespace copus
