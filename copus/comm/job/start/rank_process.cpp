#include "copus/comm/job/start/rank_process.h"

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
#include <cstring>
#include <thread>
#include <utility>

#include "copus/base/error.h"
#include "copus/base/files/write_all.h"
#include "copus/base/process/cores.h"
#include "copus/base/process/stop_signals.h"
#include "copus/comm/job/start/job_start.h"

namespace copus {

namespace {

constexpr auto look_for_news_after = std::chrono::milliseconds(100);
constexpr auto between_looks_at_the_killed = std::chrono::milliseconds(1);
constexpr std::string_view mistake_begins = "copus: error:";

// Arguments or environment in the form that exec needs.
std::vector<char*> pointers_to(std::vector<std::string>& texts) {
  std::vector<char*> pointers;
  for (std::string& text : texts) pointers.push_back(text.data());
  pointers.push_back(nullptr);
  return pointers;
}

}  // namespace

SignalSource::SignalSource() {
  sigset_t taken;
  sigemptyset(&taken);
  for (const int number : {SIGTSTP, SIGCHLD}) sigaddset(&taken, number);
  for (const int number : stop_signals()) sigaddset(&taken, number);
  COPUS_CHECK(::pthread_sigmask(SIG_BLOCK, &taken, &before_) == 0);
  // The parent may have set SIGCHLD to be ignored. The kernel would then discard the exit status of children.
  child_before_ = std::signal(SIGCHLD, SIG_DFL);
  descriptor_ = Descriptor(::signalfd(-1, &taken, SFD_CLOEXEC | SFD_NONBLOCK));
  COPUS_CHECK(descriptor_.is_open(), std::strerror(errno));
}

// Reads and drops signals that came too late to be forwarded, so that they do not end this process.
SignalSource::~SignalSource() {
  while (next()) {
  }
  std::signal(SIGCHLD, child_before_);
  ::pthread_sigmask(SIG_SETMASK, &before_, nullptr);
}

std::optional<int> SignalSource::next() const {
  signalfd_siginfo info{};
  if (::read(descriptor_.number(), &info, sizeof info) != sizeof info) return std::nullopt;
  return static_cast<int>(info.ssi_signo);
}

void ErrorLines::forward() {
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

void ErrorLines::finish() {
  if (!text_.empty() && text_.back() != '\n') text_ += '\n';
  print_lines(text_);
  text_.clear();
  source_ = Descriptor();
}

void ErrorLines::print_lines(std::string_view lines) {
  std::string output;
  while (!lines.empty()) {
    const std::string_view line = lines.substr(0, lines.find('\n') + 1);
    lines.remove_prefix(line.size());
    if (line.starts_with(mistake_begins) && !prefix_.empty()) {
      held_back_ += line;
    } else {
      output += concat(prefix_, line);
    }
  }
  if (!output.empty()) write_all(STDERR_FILENO, output);
}

bool ProcessEnd::exited_with(int code) const { return ended && WIFEXITED(status) && WEXITSTATUS(status) == code; }

bool ProcessEnd::killed_by(const std::set<int>& signals) const {
  return ended && WIFSIGNALED(status) && signals.contains(WTERMSIG(status));
}

void RankProcess::signal(int number_of_signal) {
  if (ended) return;
  ::kill(pid, number_of_signal);
  if (number_of_signal == SIGKILL && !killed_at) killed_at = std::chrono::steady_clock::now();
}

RankProcesses::RankProcesses(const std::vector<std::string>& arguments)
    : program_(std::filesystem::read_symlink("/proc/self/exe")),
      arguments_(arguments),
      start_of_job_(job_start_variable(job_start(read_rank_environment()))) {
  arguments_.insert(arguments_.begin(), program_invocation_name);
}

RankProcesses::~RankProcesses() {
  signal_all(SIGKILL);
  for (reap(); !all_ended(); reap()) std::this_thread::sleep_for(between_looks_at_the_killed);
}

RankProcess& RankProcesses::start(const RankStart& start) {
  if (all_ended()) group_ = 0;  // the group ended with its last process
  // These variables come first, because the first of two variables with the same name is used.
  std::vector<std::string> variables = start.variables;
  variables.push_back(start_of_job_);
  for (char** variable = environ; *variable != nullptr; ++variable) variables.emplace_back(*variable);
  const std::vector<char*> argument_pointers = pointers_to(arguments_);
  const std::vector<char*> variable_pointers = pointers_to(variables);

  std::array<int, 2> ends{-1, -1};
  const bool piped = !start.prefix.empty();
  if (piped) COPUS_CHECK(::pipe2(ends.data(), O_CLOEXEC) == 0, std::strerror(errno));
  Descriptor read_end(ends[0]);
  Descriptor write_end(ends[1]);
  if (piped) ::fcntl(read_end.number(), F_SETFL, O_NONBLOCK);

  const pid_t launcher = ::getpid();
  const pid_t pid = ::fork();
  if (pid < 0) {
    const int error = errno;
    throw UserError(concat("cannot start rank ", start.number, error == EAGAIN ? under_process_limit() : "", ": ",
                           std::strerror(error), "; start fewer ranks, or raise the limit on processes (ulimit -u)"));
  }
  if (pid == 0) become_rank(launcher, write_end.number(), start.inherited, argument_pointers, variable_pointers);
  if (group_ == 0) group_ = pid;
  ::setpgid(pid, group_);  // parent and child both call this, because neither may continue before it is done
  return processes_.emplace_back(start.number, pid, ErrorLines(start.prefix, std::move(read_end)));
}

// Runs in the child, where only async-signal-safe functions may be called.
void RankProcesses::become_rank(pid_t launcher, int errors, const std::vector<int>& inherited,
                                const std::vector<char*>& arguments, const std::vector<char*>& variables) const {
  ::setpgid(0, group_);
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != launcher) ::_exit(failed_job);  // the launcher died before the death signal was set
  ::close(STDIN_FILENO);
  ::open("/dev/null", O_RDONLY);  // takes the lowest free number, that of stdin
  if (errors >= 0) ::dup2(errors, STDERR_FILENO);
  for (const int descriptor : inherited) ::fcntl(descriptor, F_SETFD, 0);
  ::pthread_sigmask(SIG_SETMASK, &signals_.mask_before(), nullptr);
  ::execve(program_.c_str(), arguments.data(), variables.data());
  ::_exit(cannot_execute);
}

bool RankProcesses::all_ended() const { return std::ranges::all_of(processes_, &RankProcess::ended); }

void RankProcesses::signal_all(int signal) {
  for (RankProcess& process : processes_) process.signal(signal);
}

std::vector<RankProcess*> RankProcesses::reap() {
  std::vector<RankProcess*> reaped;
  for (RankProcess& process : processes_) {
    if (process.ended) continue;
    const pid_t ended = ::waitpid(process.pid, &process.status, WNOHANG);
    if (ended == 0) {
      if (!process.killed_at || std::chrono::steady_clock::now() - *process.killed_at < ends_within) continue;
      write_all(STDERR_FILENO, concat("copus: rank ", process.number, " (pid ", process.pid, ") was killed ",
                                      ends_within.count(), " s ago and has not ended: it hangs in the kernel, as on a ",
                                      "file system that does not answer. The job continues without it\n"));
      process.status = SIGKILL;
    } else {
      COPUS_CHECK(ended == process.pid, std::strerror(errno));
    }
    process.ended = true;
    reaped.push_back(&process);
  }
  return reaped;
}

void RankProcesses::wait_for_news(const std::vector<int>& others) const {
  std::vector<pollfd> sources = {{signals_.descriptor(), POLLIN, 0}};
  for (const RankProcess& process : processes_) {
    if (process.errors.descriptor() >= 0) sources.push_back({process.errors.descriptor(), POLLIN, 0});
  }
  for (const int other : others) sources.push_back({other, POLLIN, 0});
  ::poll(sources.data(), sources.size(), std::chrono::milliseconds(look_for_news_after).count());
}

// Forwards each occurrence of a signal once, although it may arrive both directly and through the deciding launcher.
void RankProcesses::pass_on(int signal) {
  Arrivals& arrivals = arrivals_[signal];
  if (std::max(arrivals.here, arrivals.from_above) == arrivals.passed_on) return;
  ++arrivals.passed_on;
  passed_on_.insert(signal);
  signal_all(signal);
}

void RankProcesses::pass_on_from_above(int signal) {
  ++arrivals_[signal].from_above;
  pass_on(signal);
}

std::vector<int> RankProcesses::take_signals() {
  std::vector<int> taken;
  while (const auto signal = signals_.next()) {
    switch (*signal) {
      case SIGTSTP:  // Ctrl-Z; the ranks are in another process group than the launcher, and stop and continue with it
        signal_all(SIGSTOP);
        ::raise(SIGSTOP);
        signal_all(SIGCONT);
        break;
      case SIGCHLD:
        break;
      default:
        ++arrivals_[*signal].here;
        pass_on(*signal);
        taken.push_back(*signal);
        break;
    }
  }
  return taken;
}

void RankProcesses::forward_errors() {
  for (RankProcess& process : processes_) process.errors.forward();
}

void RankProcesses::finish_errors() {
  forward_errors();
  for (RankProcess& process : processes_) process.errors.finish();
}

std::optional<std::string> RankProcesses::judge_end(const ProcessEnd& process, bool in_the_middle) const {
  if (WIFSIGNALED(process.status)) {
    const int signal = WTERMSIG(process.status);
    return concat("killed by signal ", signal, " (", ::strsignal(signal), ")");
  }
  const int code = WEXITSTATUS(process.status);
  if (!in_the_middle && (code == 0 || code == asked_to_stop || code == interrupted)) return std::nullopt;
  if (code == cannot_execute) return concat("cannot execute ", program_.string());
  return concat("it exited with code ", code, code == 0 ? ", in the middle of the job" : "");
}

int RankProcesses::conclude(const FailureReport& failure, const ConcludedProcess& first,
                            const std::optional<ConcludedProcess>& failed) const {
  if (failed && failed->end.exited_with(users_mistake)) {
    // A user's mistake that rank 0 found has already been printed. The messages of other ranks were held back, because
    // they would repeat it.
    const bool is_told = first.speaks_here && first.end.exited_with(users_mistake);
    if (!is_told) write_all(STDERR_FILENO, failed->held_back);
    return users_mistake;
  }
  if (failed && failed->end.killed_by(passed_on_)) {
    // The signal is the user's second Ctrl-C, or it arrived before the ranks had installed their handlers.
    return WTERMSIG(failed->end.status) == SIGINT ? interrupted : asked_to_stop;
  }
  announce(failure);
  return failed_job;
}

}  // namespace copus
