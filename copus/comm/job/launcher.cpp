// Starts the ranks of a job as processes on this machine and watches over them until the last has ended.
#include "copus/comm/job/launcher.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <set>
#include <string_view>
#include <utility>

#include "copus/base/error.h"
#include "copus/base/write_all.h"
#include "copus/comm/descriptor.h"
#include "copus/comm/health/process_state.h"
#include "copus/comm/health/rank_monitor.h"
#include "copus/comm/health/shared_health.h"
#include "copus/comm/shared_memory/shared_memory_world.h"

namespace copus {

namespace {

using Clock = std::chrono::steady_clock;

constexpr auto interval = std::chrono::milliseconds(100);
// When a rank has failed, the others get so much time to end by themselves.
constexpr auto grace = std::chrono::milliseconds(1500);

constexpr int failed_job = 1;
constexpr int users_mistake = 2;
constexpr int asked_to_stop = 75;  // after SIGTERM or a time limit (apps/copus/program.h)
constexpr int interrupted = 130;
constexpr int cannot_execute = 127;
constexpr std::string_view mistake_begins = "copus: error:";

// While it lives, these signals are read from a descriptor and do nothing else, provided no other thread takes them.
class SignalSource {
 public:
  SignalSource() {
    sigset_t taken;
    sigemptyset(&taken);
    for (const int number : {SIGINT, SIGTERM, SIGTSTP, SIGCHLD}) sigaddset(&taken, number);
    COPUS_CHECK(::pthread_sigmask(SIG_BLOCK, &taken, &before_) == 0);
    // Whoever started this process may have set SIGCHLD to be ignored. The kernel would then forget how children ended.
    child_before_ = std::signal(SIGCHLD, SIG_DFL);
    descriptor_ = Descriptor(::signalfd(-1, &taken, SFD_CLOEXEC | SFD_NONBLOCK));
    COPUS_CHECK(descriptor_.is_open(), std::strerror(errno));
  }
  SignalSource(const SignalSource&) = delete;
  SignalSource& operator=(const SignalSource&) = delete;
  // Signals that came too late for the ranks are read too, so that they do not end this process instead.
  ~SignalSource() {
    while (next()) {
    }
    std::signal(SIGCHLD, child_before_);
    ::pthread_sigmask(SIG_SETMASK, &before_, nullptr);
  }

  int descriptor() const { return descriptor_.number(); }
  const sigset_t& mask_before() const { return before_; }

  std::optional<int> next() const {
    signalfd_siginfo info{};
    if (::read(descriptor_.number(), &info, sizeof info) != sizeof info) return std::nullopt;
    return static_cast<int>(info.ssi_signo);
  }

 private:
  sigset_t before_{};
  void (*child_before_)(int) = SIG_DFL;
  Descriptor descriptor_;
};

// Passes on what a rank writes to stderr, with the rank before each line. Messages about mistakes of the user are held
// back, since all ranks find the same ones and rank 0 prints them.
class ErrorLines {
 public:
  ErrorLines(int64_t rank, Descriptor source) : rank_(rank), source_(std::move(source)) {}

  int descriptor() const { return source_.number(); }
  const std::string& held_back() const { return held_back_; }

  // Passes on everything that is there now, without waiting.
  void forward() {
    std::array<char, 4096> buffer;
    while (source_.is_open()) {
      const ssize_t count = ::read(source_.number(), buffer.data(), buffer.size());
      if (count < 0 && errno == EINTR) continue;
      if (count < 0) break;
      if (count == 0) {
        finish();
        return;
      }
      text_.append(buffer.data(), count);
    }
    const size_t lines_end = text_.rfind('\n');
    if (lines_end == std::string::npos) return;
    print_lines(std::string_view(text_).substr(0, lines_end + 1));
    text_.erase(0, lines_end + 1);
  }

  void finish() {
    if (!text_.empty() && text_.back() != '\n') text_ += '\n';
    print_lines(text_);
    text_.clear();
    source_ = Descriptor();
  }

 private:
  void print_lines(std::string_view lines) {
    std::string output;
    while (!lines.empty()) {
      const std::string_view line = lines.substr(0, lines.find('\n') + 1);
      lines.remove_prefix(line.size());
      if (line.starts_with(mistake_begins)) {
        held_back_ += line;
      } else {
        output += concat("rank ", rank_, ": ", line);
      }
    }
    if (!output.empty()) write_all(STDERR_FILENO, output);
  }

  const int64_t rank_;
  Descriptor source_;
  std::string text_;
  std::string held_back_;
};

struct RankProcess {
  int64_t rank = 0;
  pid_t pid = 0;
  bool ended = false;
  int status = 0;  // as waitpid gives it
  ErrorLines errors;

  bool exited_with(int code) const { return ended && WIFEXITED(status) && WEXITSTATUS(status) == code; }
};

// Arguments or environment in the form that exec takes.
std::vector<char*> pointers_to(std::vector<std::string>& texts) {
  std::vector<char*> pointers;
  for (std::string& text : texts) pointers.push_back(text.data());
  pointers.push_back(nullptr);
  return pointers;
}

class Job {
 public:
  Job(int64_t size, const std::vector<std::string>& arguments)
      : size_(size),
        segment_(SharedSegment::create(size)),
        health_(segment_.health(), size, size),
        monitor_(health_, RankMonitor::Role::parent),
        program_(std::filesystem::read_symlink("/proc/self/exe")),
        arguments_(arguments) {
    arguments_.insert(arguments_.begin(), program_invocation_name);
    health_.become_launcher();
  }
  Job(const Job&) = delete;
  Job& operator=(const Job&) = delete;
  ~Job() {
    signal_all(SIGKILL);
    for (RankProcess& process : processes_) {
      if (!process.ended) ::waitpid(process.pid, &process.status, 0);
    }
  }

  int run() {
    for (int64_t rank = 0; rank < size_; ++rank) start(rank);
    auto looked = Clock::now();
    while (!all_ended()) {
      wait_for_news();
      while (const auto signal = signals_.next()) handle(*signal);
      reap();
      for (RankProcess& process : processes_) process.errors.forward();
      const auto now = Clock::now();
      watch(std::chrono::duration<double>(now - looked).count());
      looked = now;
    }
    for (RankProcess& process : processes_) {
      process.errors.forward();
      process.errors.finish();
    }
    return conclude();
  }

 private:
  void start(int64_t rank) {
    // These come first, since of two variables with the same name the first one counts.
    std::vector<std::string> variables = {concat("COPUS_RANK=", rank), concat("COPUS_WORLD_SIZE=", size_),
                                          concat("COPUS_SEGMENT=", segment_.descriptor())};
    for (char** variable = environ; *variable != nullptr; ++variable) variables.emplace_back(*variable);
    const std::vector<char*> argument_pointers = pointers_to(arguments_);
    const std::vector<char*> variable_pointers = pointers_to(variables);

    std::array<int, 2> ends{-1, -1};
    if (rank > 0) COPUS_CHECK(::pipe2(ends.data(), O_CLOEXEC) == 0, std::strerror(errno));
    Descriptor read_end(ends[0]);
    Descriptor write_end(ends[1]);
    if (rank > 0) ::fcntl(read_end.number(), F_SETFL, O_NONBLOCK);

    const pid_t launcher = ::getpid();
    const pid_t pid = ::fork();
    if (pid < 0) {
      throw UserError(concat("cannot start rank ", rank, " of ", size_, ": ", std::strerror(errno),
                             "; start fewer ranks, or raise the limit on processes (ulimit -u)"));
    }
    if (pid == 0) become_rank(launcher, write_end.number(), argument_pointers, variable_pointers);
    if (rank == 0) group_ = pid;
    ::setpgid(pid, group_);  // both processes do it, since neither may go on before it is done
    health_.set_process(rank, pid);
    processes_.push_back({rank, pid, false, 0, ErrorLines(rank, std::move(read_end))});
  }

  // Runs in the child, where only async-signal-safe functions may be called.
  [[noreturn]] void become_rank(pid_t launcher, int errors, const std::vector<char*>& arguments,
                                const std::vector<char*>& variables) const {
    // In a group of its own: a terminal then sends Ctrl-C to the launcher alone, which passes it on once.
    ::setpgid(0, group_);
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (::getppid() != launcher) ::_exit(failed_job);  // the launcher died before this rank would have been told of it
    ::close(STDIN_FILENO);
    ::open("/dev/null", O_RDONLY);  // takes the lowest number that is free, which is that of stdin
    if (errors >= 0) ::dup2(errors, STDERR_FILENO);
    ::fcntl(segment_.descriptor(), F_SETFD, 0);
    ::pthread_sigmask(SIG_SETMASK, &signals_.mask_before(), nullptr);
    ::execve(program_.c_str(), arguments.data(), variables.data());
    ::_exit(cannot_execute);
  }

  bool all_ended() const { return std::ranges::all_of(processes_, &RankProcess::ended); }

  void signal_all(int signal) const {
    for (const RankProcess& process : processes_) {
      if (!process.ended) ::kill(process.pid, signal);
    }
  }

  // Returns when a signal or output has come, or when it is time to look again.
  void wait_for_news() const {
    std::vector<pollfd> sources = {{signals_.descriptor(), POLLIN, 0}};
    for (const RankProcess& process : processes_) {
      if (process.errors.descriptor() >= 0) sources.push_back({process.errors.descriptor(), POLLIN, 0});
    }
    ::poll(sources.data(), sources.size(), std::chrono::milliseconds(interval).count());
  }

  void handle(int signal) {
    switch (signal) {
      case SIGINT:
      case SIGTERM:
        passed_on_.insert(signal);
        signal_all(signal);
        break;
      case SIGTSTP:  // Ctrl-Z; the ranks are not in the terminal's group, and so stop and go on with the launcher
        signal_all(SIGSTOP);
        ::raise(SIGSTOP);
        signal_all(SIGCONT);
        break;
      default:
        break;
    }
  }

  void reap() {
    for (RankProcess& process : processes_) {
      if (process.ended) continue;
      const pid_t ended = ::waitpid(process.pid, &process.status, WNOHANG);
      if (ended == 0) continue;
      COPUS_CHECK(ended == process.pid, std::strerror(errno));
      process.ended = true;
      monitor_.forget(process.rank);
      if (const auto cause = judge_end(process)) {
        health_.report({process.rank, health_.place_of(process.rank), *cause});
      }
    }
  }

  // Why the end of a process is a failure; empty where it is none.
  std::optional<std::string> judge_end(const RankProcess& process) const {
    if (WIFSIGNALED(process.status)) {
      const int signal = WTERMSIG(process.status);
      return concat("killed by signal ", signal, " (", ::strsignal(signal), ")");
    }
    const int code = WEXITSTATUS(process.status);
    const RankSigns signs = health_.signs_of(process.rank);
    const bool in_the_middle = signs.heartbeats > 0 && !signs.left;
    if (!in_the_middle && (code == 0 || code == asked_to_stop || code == interrupted)) return std::nullopt;
    if (code == cannot_execute) return concat("cannot execute ", program_.string());
    return concat("it exited with code ", code, code == 0 ? ", in the middle of the job" : "");
  }

  void watch(double seconds) {
    if (const auto report = monitor_.look(seconds)) health_.report(*report);
    if (!health_.failure()) return;
    if (!deadline_) deadline_ = Clock::now() + grace;
    const bool too_late = Clock::now() > *deadline_;
    for (const RankProcess& process : processes_) {
      if (process.ended) continue;
      // A process that is stopped cannot end by itself.
      if (too_late || process_state(process.pid) == ProcessState::stopped) ::kill(process.pid, SIGKILL);
    }
  }

  // Gives the exit code of a job whose ranks have ended, and tells the user what there is to tell.
  int conclude() const {
    const RankProcess& first = processes_.front();
    const std::optional<FailureReport> failure = health_.failure();
    if (!failure) return WEXITSTATUS(first.status);
    if (failure->rank >= 0) {
      const RankProcess& failed = processes_[failure->rank];
      if (failed.exited_with(users_mistake)) {
        // If it is rank 0, its message stands there already. If not, rank 0 may have found the same mistake.
        if (!first.exited_with(users_mistake)) write_all(STDERR_FILENO, failed.errors.held_back());
        return users_mistake;
      }
      if (WIFSIGNALED(failed.status) && passed_on_.contains(WTERMSIG(failed.status))) {
        return 128 + WTERMSIG(failed.status);  // the user's second Ctrl-C, or one before the ranks were ready for it
      }
    }
    announce(*failure);
    return failed_job;
  }

  const int64_t size_;
  SharedSegment segment_;
  SharedHealth health_;
  RankMonitor monitor_;
  const std::filesystem::path program_;
  std::vector<std::string> arguments_;
  SignalSource signals_;
  pid_t group_ = 0;
  std::vector<RankProcess> processes_;
  std::set<int> passed_on_;
  std::optional<Clock::time_point> deadline_;
};

}  // namespace

int launch_healing_ranks(int64_t size, const std::vector<std::string>& arguments, const Healing& /*healing*/) {
  return launch_ranks(size, arguments);
}

std::unique_ptr<World> join_launched_ranks(const RankEnvironment& environment, double wait_seconds) {
  return join_shared_memory(
      std::make_shared<SharedSegment>(SharedSegment::open(Descriptor(environment.segment), environment.world_size)),
      environment.rank, environment.world_size, wait_seconds, true);
}

int launch_ranks(int64_t size, const std::vector<std::string>& arguments) {
  COPUS_CHECK(size >= 1, size);
  return Job(size, arguments).run();
}

}  // namespace copus
