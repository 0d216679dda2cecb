// `copus doctor`: reports the abilities of this machine within ten seconds. All checks run at the same time, each with
// a deadline, because file systems, name servers and drivers can hang. The checks of libtorch and GPUs run in
// copus-torch, which may crash or fail to start.
#include <fcntl.h>
#include <poll.h>
#include <spawn.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <ctime>
#include <functional>
#include <future>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "copus/base/error.h"
#include "copus/base/process/available_memory.h"
#include "copus/base/process/cores.h"
#include "copus/base/process/cpu_quota.h"
#include "copus/base/text/json_text.h"
#include "copus/cli/with_libtorch.h"
#include "copus/comm/descriptor.h"
#include "copus/workshop/commands.h"
#include "copus/workshop/doctor/host_checks.h"
#include "copus/workshop/doctor/link_checks.h"
#include "copus/workshop/doctor/report.h"

namespace copus {

namespace {

using Clock = std::chrono::steady_clock;
constexpr std::chrono::seconds most_of_a_check{3}, most_of_the_trainer{8};

// A check that runs on its own thread. If the thread does not end, it is abandoned; the process ends anyway.
class StartedCheck {
 public:
  StartedCheck(std::string subject, std::function<std::vector<Finding>()> check) : subject_(std::move(subject)) {
    auto work = std::make_shared<std::packaged_task<std::vector<Finding>()>>(std::move(check));
    result_ = work->get_future();
    try {
      std::thread([work] { (*work)(); }).detach();
    } catch (const std::system_error&) {
      (*work)();  // the check runs here if the system refuses another thread, which another check reports
    }
  }

  std::vector<Finding> wait(Clock::time_point deadline) {
    if (result_.wait_until(deadline) == std::future_status::ready) return result_.get();
    return {{Verdict::bad, subject_, concat("no answer within ", most_of_a_check.count(), " s"),
             "a file system, name server or device hangs: look there"}};
  }

 private:
  std::string subject_;
  std::future<std::vector<Finding>> result_;
};

// The process of copus-torch that checks libtorch and GPUs and prints its findings.
class Trainer {
 public:
  explicit Trainer(const std::string& program) {
    std::array<int, 2> ends{};
    COPUS_CHECK(::pipe2(ends.data(), O_CLOEXEC) == 0, errno);
    output_ = Descriptor(ends[0]);
    const Descriptor writable(ends[1]);
    posix_spawn_file_actions_t actions;
    ::posix_spawn_file_actions_init(&actions);
    ::posix_spawn_file_actions_adddup2(&actions, ends[1], STDOUT_FILENO);
    ::posix_spawn_file_actions_adddup2(&actions, ends[1], STDERR_FILENO);
    std::string path = program, command = doctor_of_trainer;
    const std::array<char*, 3> arguments{path.data(), command.data(), nullptr};
    error_ = ::posix_spawn(&process_, program.c_str(), &actions, nullptr, arguments.data(), environ);
    ::posix_spawn_file_actions_destroy(&actions);
  }
  Trainer(const Trainer&) = delete;
  Trainer& operator=(const Trainer&) = delete;
  ~Trainer() { end(); }

  // Returns its findings. Adds a bad one if it did not finish its checks.
  std::vector<Finding> wait(Clock::time_point deadline) {
    if (error_ != 0) return {bad(concat("copus-torch cannot be started: ", std::generic_category().message(error_)))};
    std::string text;
    const bool is_over = read(deadline, text);
    const int status = end();
    std::vector<Finding> findings;
    std::string last_words;
    for (size_t begin = 0; begin < text.size();) {
      const size_t line_end = std::min(text.find('\n', begin), text.size());
      const std::string line = text.substr(begin, line_end - begin);
      begin = line_end + 1;
      if (auto finding = finding_of(line)) {
        findings.push_back(std::move(*finding));
      } else if (!line.empty()) {
        last_words = ": " + line;
      }
    }
    const std::string after = findings.empty() ? "" : " after " + findings.back().subject;
    if (!is_over && findings.empty()) {
      findings.push_back({Verdict::warning, "trainer",
                          concat("libtorch is not loaded within ", most_of_the_trainer.count(), " s"),
                          "the first load from a network's file system is slow: run copus doctor again"});
    } else if (!is_over) {
      findings.push_back(bad(concat("no answer within ", most_of_the_trainer.count(), " s", after)));
    } else if (status != 0) {
      const std::string how =
          WIFSIGNALED(status) ? concat("signal ", WTERMSIG(status)) : concat("exit code ", WEXITSTATUS(status));
      findings.push_back(bad(concat("copus-torch ended", after, " with ", how, last_words)));
    }
    return findings;
  }

 private:
  static Finding bad(const std::string& text) {
    return {Verdict::bad, "trainer", text,
            "the libraries of libtorch must be where they were when it was built, and the GPU's driver must work "
            "(nvidia-smi); build again, or set train.device = \"cpu\""};
  }

  // Reads its output into `text`. Returns whether the output was closed before the deadline.
  bool read(Clock::time_point deadline, std::string& text) const {
    std::array<char, 4096> buffer{};
    while (true) {
      const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(deadline - Clock::now());
      pollfd wait{.fd = output_.number(), .events = POLLIN, .revents = 0};
      const int ready = left.count() <= 0 ? 0 : ::poll(&wait, 1, static_cast<int>(left.count()));
      if (ready < 0 && errno == EINTR) continue;
      if (ready <= 0) return false;
      const ssize_t count = ::read(output_.number(), buffer.data(), buffer.size());
      if (count <= 0) return count == 0;
      text.append(buffer.data(), static_cast<size_t>(count));
    }
  }

  // Kills the process if it has not ended, and returns its exit status. A process that hangs in a driver does not react
  // to SIGKILL, so it is abandoned.
  int end() {
    if (process_ <= 0 || error_ != 0) return 0;
    int status = 0;
    const auto start = Clock::now();
    while (::waitpid(process_, &status, WNOHANG) == 0) {
      if (Clock::now() > start + std::chrono::milliseconds(500)) ::kill(process_, SIGKILL);
      if (Clock::now() > start + std::chrono::milliseconds(1500)) break;
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }
    process_ = 0;
    return status;
  }

  Descriptor output_;
  pid_t process_ = 0;
  int error_ = 0;
};

int64_t most_open_files() {
  rlimit limit{};
  ::getrlimit(RLIMIT_NOFILE, &limit);
  return static_cast<int64_t>(limit.rlim_max);
}

std::vector<Finding> examine(const std::string& run_directory) {
  // must run before any threads start, because it forks
  Finding peer_memory = check_peer_memory();
  const auto program = program_with_libtorch();
  std::optional<Trainer> trainer;
  const auto mismatch = program ? pytorch_mismatch(*program) : std::nullopt;
  if (program && !mismatch) trainer.emplace(program->string());
  const int64_t cores = usable_cores();
  const int64_t ranks = std::min<int64_t>(cores, 8);
  const Clock::time_point start = Clock::now();
  std::vector<StartedCheck> checks;
  const auto add = [&](const std::string& subject, const std::function<Finding()>& check) {
    checks.emplace_back(subject, [check] { return std::vector{check()}; });
  };
  add("cores", [=] { return check_cores(cores_of_affinity(), cores, cpu_quota(), default_threads(1)); });
  add("memory", [] { return check_memory(available_memory_bytes(), available_address_space_bytes()); });
  add("threads", [=] { return check_threads(ranks); });
  add("open files", [=] { return check_open_files(most_open_files(), ranks); });
  add("run directory", [=] { return check_run_directory(run_directory); });
  add("shared memory", [] { return check_shared_memory("/dev/shm"); });
  add("ports", [] { return check_port("127.0.0.1"); });
  add("host name", [] { return check_host_name(own_host_name()); });
  add("links", [] { return check_links("/sys/class"); });
  add("clock", [] { return check_clock(std::time(nullptr), is_clock_synchronized()); });
  add("launcher", check_launcher);
  checks.emplace_back("environment", [=] { return check_variables(cores); });

  std::vector<Finding> findings;
  const auto take = [&](std::vector<Finding> more) {
    findings.insert(findings.end(), std::make_move_iterator(more.begin()), std::make_move_iterator(more.end()));
  };
  if (mismatch) {
    take({{Verdict::bad, "trainer", concat("training needs ", mismatch->text), mismatch->remedy}});
  } else if (!trainer) {
    take({{Verdict::warning, "trainer", "this program has no libtorch, so it plans and simulates, and does not train",
           how_to_build_with_libtorch}});
    take({check_gpus("", 0, kernel_devices())});
  } else {
    take(trainer->wait(start + most_of_the_trainer));
  }
  for (StartedCheck& check : checks) take(check.wait(start + most_of_a_check));
  take({std::move(peer_memory)});
  return findings;
}

}  // namespace

void add_doctor(CLI::App& program, CommandAction& action) {
  struct Options {
    std::string run_directory = ".";
    bool json = false;
  };
  auto options = std::make_shared<Options>();
  CLI::App& doctor = *program.add_subcommand(
      "doctor", "Check within ten seconds what this machine can do, and say what to do about what is bad");
  doctor.add_option("--run-dir", options->run_directory, "Where runs are to be written")->capture_default_str();
  doctor.add_flag("--json", options->json, "Print one JSON object");
  doctor.footer(
      "A warning: runs work, but slower, or some kinds of run do not. Bad: runs fail.\n"
      "Exit codes: 0 nothing is bad, 1 something is, 2 a mistake in what was given.\n"
      "Examples:\n"
      "  copus doctor --run-dir runs\n"
      "  srun --label --nodes 4 --ntasks-per-node 1 copus doctor --run-dir /shared/runs\n"
      "'copus selftest' then runs all groups, links and layouts of a job.");
  doctor.callback([options, &program, &action] {
    action = [options, version = program.version()] {
      std::vector<Finding> findings = examine(options->run_directory);
      findings.insert(findings.begin(), {Verdict::ok, "program", version});
      if (options->json) {
        std::cout << json_text(doctor_json(findings)) << '\n';
      } else {
        std::cout << doctor_text(findings);
      }
      return has_bad(findings) ? 1 : 0;
    };
  });
}

}  // namespace copus
