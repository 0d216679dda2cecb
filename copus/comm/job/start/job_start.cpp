#include "copus/comm/job/start/job_start.h"

#include <unistd.h>

#include <algorithm>
#include <ctime>
#include <fstream>
#include <iterator>
#include <sstream>
#include <string_view>

#include "copus/base/error.h"

namespace copus {

namespace {

using Clock = std::chrono::steady_clock;

// The variable that a launcher sets for its ranks but does not have itself.
const char* mark_of_ranks(LauncherKind launcher) {
  switch (launcher) {
    case LauncherKind::copus:
      return "COPUS_RANK";
    case LauncherKind::torchrun:
      return "TORCHELASTIC_RUN_ID";
    case LauncherKind::slurm:
      return "SLURM_PROCID";
    case LauncherKind::open_mpi:
      return "OMPI_COMM_WORLD_RANK";
  }
  fail_check("a known launcher", __FILE__, __LINE__, "");
}

}  // namespace

bool is_within_job(int64_t pid, LauncherKind launcher) {
  std::ifstream file(concat("/proc/", pid, "/environ"), std::ios::binary);
  const std::string all((std::istreambuf_iterator<char>(file)), {});
  return concat('\0', all).find(concat('\0', mark_of_ranks(launcher), '=')) != std::string::npos;
}

std::optional<Clock::time_point> process_start(int64_t pid) {
  constexpr int fields_from_state = 20;  // from the state to the start (ticks since the machine booted)
  std::ifstream file(concat("/proc/", pid, "/stat"));
  std::string line;
  if (!std::getline(file, line)) return std::nullopt;
  const size_t name_end = line.rfind(") ");  // "pid (name) state ...", where the name may contain anything
  if (name_end == std::string::npos) return std::nullopt;
  std::istringstream fields(line.substr(name_end + 2));
  std::string skipped;
  for (int i = 1; i < fields_from_state; ++i) fields >> skipped;
  double ticks = 0;
  timespec now{};
  if (!(fields >> ticks) || clock_gettime(CLOCK_BOOTTIME, &now) != 0) return std::nullopt;
  const double since_boot = static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
  const std::chrono::duration<double> age(since_boot - ticks / static_cast<double>(sysconf(_SC_CLK_TCK)));
  return Clock::now() - std::max(Clock::duration(0), std::chrono::duration_cast<Clock::duration>(age));
}

Clock::time_point job_start(const std::optional<RankEnvironment>& environment) {
  if (environment && environment->job_start) {
    return std::min(Clock::now(), Clock::time_point(std::chrono::nanoseconds(*environment->job_start)));
  }
  const int64_t parent = ::getppid();
  const bool has_launcher = environment && (environment->has_agent || environment->launcher == LauncherKind::open_mpi);
  const bool is_agent = has_launcher && !is_within_job(parent, environment->launcher);
  const auto start = process_start(is_agent ? parent : ::getpid());
  return start.value_or(Clock::now());
}

std::string job_start_variable(Clock::time_point start) {
  return concat("COPUS_JOB_START=", std::chrono::nanoseconds(start.time_since_epoch()).count());
}

}  // namespace copus
