#include "copus/comm/job/start/job_start.h"

#include <gtest/gtest.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <fstream>
#include <iterator>
#include <stdexcept>
#include <string>
#include <thread>

namespace copus {
namespace {

using Clock = std::chrono::steady_clock;

// An idle process that is started with one variable. posix_spawn() may return while the kernel is still setting up the
// new program. Until then, the process' environment reads as that of its parent, or as empty.
class Sleeper {
 public:
  explicit Sleeper(std::string variable) {
    std::string program = "sleep", seconds = "600";
    char* arguments[] = {program.data(), seconds.data(), nullptr};
    char* variables[] = {variable.data(), nullptr};
    if (::posix_spawn(&pid_, "/bin/sleep", nullptr, nullptr, arguments, variables) != 0) {
      throw std::runtime_error("/bin/sleep cannot be started");
    }
    const auto deadline = Clock::now() + std::chrono::seconds(60);
    while (variables_of_process() != variable + '\0') {
      if (Clock::now() > deadline) {
        end();
        throw std::runtime_error("after 60 s, sleep does not have the variables that it was given");
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  }
  ~Sleeper() { end(); }
  Sleeper(const Sleeper&) = delete;
  Sleeper& operator=(const Sleeper&) = delete;

  pid_t pid() const { return pid_; }

 private:
  std::string variables_of_process() const {
    std::ifstream file("/proc/" + std::to_string(pid_) + "/environ", std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
  }
  void end() const {
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
  }

  pid_t pid_ = -1;
};

TEST(JobStart, AProcessBeganAfterItsParentAndBeforeNow) {
  std::this_thread::sleep_for(std::chrono::milliseconds(50));  // several ticks of the kernel's clock
  const Sleeper child("A=b");
  const auto own = process_start(::getpid()), of_child = process_start(child.pid());
  ASSERT_TRUE(own && of_child);
  EXPECT_LT(*own, *of_child);
  EXPECT_LE(*of_child, Clock::now());
  EXPECT_FALSE(process_start(-1));
}

TEST(JobStart, AJobBeganWithItsLauncher) {
  const auto is_near = [](Clock::time_point a, Clock::time_point b) {
    return std::chrono::abs(a - b) < std::chrono::milliseconds(20);  // two ticks: the clocks are read in sequence
  };
  EXPECT_TRUE(is_near(job_start(std::nullopt), *process_start(::getpid())));
  RankEnvironment environment;
  environment.launcher = LauncherKind::torchrun;
  EXPECT_TRUE(is_near(job_start(environment), *process_start(::getpid()))) << "variables set by hand";
  environment.has_agent = true;
  EXPECT_TRUE(is_near(job_start(environment), *process_start(::getppid())));
  environment.launcher = LauncherKind::copus;
  environment.job_start = 12'345;
  EXPECT_EQ(job_start(environment), Clock::time_point(std::chrono::nanoseconds(12'345)));
  EXPECT_EQ(job_start_variable(Clock::time_point(std::chrono::nanoseconds(12'345))), "COPUS_JOB_START=12345");
}

TEST(JobStart, AScriptThatALauncherHasStartedIsNoLauncher) {
  const Sleeper of_torchrun("TORCHELASTIC_RUN_ID=7"), alone("NOT_TORCHELASTIC_RUN_ID=7");
  EXPECT_TRUE(is_within_job(of_torchrun.pid(), LauncherKind::torchrun));
  EXPECT_FALSE(is_within_job(of_torchrun.pid(), LauncherKind::slurm));
  EXPECT_FALSE(is_within_job(alone.pid(), LauncherKind::torchrun));
  EXPECT_FALSE(is_within_job(-1, LauncherKind::torchrun));
}

}  // namespace
}  // namespace copus
