#include "copus/cli/compare/child_processes.h"

#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "copus/base/error.h"
#include "copus/base/files/regular_file.h"
#include "copus/base/process/cores.h"
#include "copus/base/process/stop_signals.h"

namespace copus {

namespace {

constexpr int cannot_execute = 127;

// Runs in the child, where only async-signal-safe functions may be called.
[[noreturn]] void become_run(pid_t parent, int log, const char* program, char* const* arguments, const sigset_t& mask) {
  ::setpgid(0, 0);
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != parent) ::_exit(cannot_execute);  // the parent died before prctl
  ::close(STDIN_FILENO);
  ::open("/dev/null", O_RDONLY);  // takes the lowest free number, that of stdin
  ::dup2(log, STDOUT_FILENO);
  ::dup2(log, STDERR_FILENO);
  ::signal(SIGINT, SIG_DFL);  // a shell makes background programs ignore SIGINT, but this child must receive it
  ::pthread_sigmask(SIG_SETMASK, &mask, nullptr);
  ::execv(program, arguments);
  ::_exit(cannot_execute);
}

}  // namespace

ChildProcesses::ChildProcesses() {
  sigemptyset(&taken_);
  sigaddset(&taken_, SIGCHLD);
  for (const int number : stop_signals()) sigaddset(&taken_, number);
  COPUS_CHECK(::pthread_sigmask(SIG_BLOCK, &taken_, &mask_before_) == 0);
  // The parent may have set SIGCHLD to be ignored. The kernel would then discard the exit status of children.
  child_before_ = ::signal(SIGCHLD, SIG_DFL);
}

ChildProcesses::~ChildProcesses() {
  send(SIGKILL);
  for (const auto& [pid, number] : running_) ::waitpid(pid, nullptr, 0);
  // Discards signals that came too late to be reported, so that they do not end this process at once.
  const timespec at_once{};
  while (::sigtimedwait(&taken_, nullptr, &at_once) > 0) {
  }
  ::signal(SIGCHLD, child_before_);
  ::pthread_sigmask(SIG_SETMASK, &mask_before_, nullptr);
}

size_t ChildProcesses::start(const std::vector<std::string>& arguments, const std::filesystem::path& log) {
  const auto [descriptor, error_number, why_not] = open_regular_file(log, O_WRONLY | O_CREAT | O_APPEND);
  if (descriptor < 0) throw UserError(concat("cannot write ", log.string(), ": ", why_not));
  const std::filesystem::path program = std::filesystem::read_symlink("/proc/self/exe");
  std::vector<std::string> texts = {program_invocation_name};
  texts.insert(texts.end(), arguments.begin(), arguments.end());
  std::vector<char*> pointers;
  for (std::string& text : texts) pointers.push_back(text.data());
  pointers.push_back(nullptr);

  const pid_t parent = ::getpid();
  const pid_t pid = ::fork();
  if (pid == 0) become_run(parent, descriptor, program.c_str(), pointers.data(), mask_before_);
  const int error = errno;
  ::close(descriptor);
  if (pid < 0) {
    throw UserError(concat("cannot start another process", error == EAGAIN ? under_process_limit() : "", ": ",
                           std::strerror(error),
                           "; run fewer at once (--jobs), or raise the limit on processes (ulimit -u)"));
  }
  running_[pid] = started_;
  return started_++;
}

pid_t ChildProcesses::pid_of(size_t number) const {
  const auto found = std::ranges::find(running_, number, &std::pair<const pid_t, size_t>::second);
  COPUS_CHECK(found != running_.end(), number);
  return found->first;
}

std::optional<ChildProcesses::News> ChildProcesses::reap() {
  for (const auto& [pid, number] : running_) {
    int status = 0;
    if (::waitpid(pid, &status, WNOHANG) != pid) continue;
    const News news{number, WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status), 0};
    running_.erase(running_.find(pid));
    return news;
  }
  return std::nullopt;
}

std::optional<ChildProcesses::News> ChildProcesses::look() {
  if (const auto news = reap()) return news;
  const timespec at_once{};
  for (int signal = 0; (signal = ::sigtimedwait(&taken_, nullptr, &at_once)) > 0;) {
    if (signal != SIGCHLD) return News{.signal = signal};
  }
  return std::nullopt;
}

ChildProcesses::News ChildProcesses::wait() {
  COPUS_CHECK(!running_.empty());
  while (true) {
    if (const auto news = reap()) return *news;
    const int signal = ::sigwaitinfo(&taken_, nullptr);
    if (signal > 0 && signal != SIGCHLD) return {.signal = signal};
  }
}

void ChildProcesses::send(int signal) const {
  for (const auto& [pid, number] : running_) ::kill(pid, signal);
}

}  // namespace copus
