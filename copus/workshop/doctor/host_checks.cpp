#include "copus/workshop/doctor/host_checks.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/timex.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <string>
#include <string_view>
#include <system_error>

#include "copus/base/error.h"
#include "copus/base/files/durable_file.h"
#include "copus/base/files/regular_file.h"
#include "copus/base/process/cores.h"
#include "copus/base/process/open_files.h"
#include "copus/base/text/units.h"
#include "copus/comm/descriptor.h"
#include "copus/comm/gpu/gpu_environment.h"
#include "copus/comm/job/start/launcher.h"
#include "copus/comm/shared_memory/peer_memory.h"

namespace copus {

namespace {

constexpr double mebibyte = 1 << 20;

std::string bytes_text(int64_t bytes) { return format_bytes(static_cast<double>(bytes)); }

}  // namespace

Finding check_cores(int64_t bound, int64_t usable, std::optional<double> quota, int64_t threads) {
  Finding finding{Verdict::ok, "cores",
                  concat(usable, " usable: the process may run on ", bound, ", and ",
                         quota ? concat("its control group grants the time of ", format_number("%.3g", *quota))
                               : "no control group limits their time")};
  if (threads > usable) {
    finding.verdict = Verdict::warning;
    finding.remedy = concat("OMP_NUM_THREADS asks for ", threads,
                            " threads, which would take turns: unset it, or set it "
                            "to at most ",
                            usable);
  }
  return finding;
}

Finding check_memory(int64_t available, int64_t address_space) {
  constexpr auto least = static_cast<int64_t>(512 * mebibyte), comfortable = static_cast<int64_t>(2048 * mebibyte);
  const bool is_limited = address_space < std::numeric_limits<int64_t>::max();
  const int64_t smaller = std::min(available, address_space);
  Finding finding{Verdict::ok, "memory",
                  concat(bytes_text(available), " available",
                         is_limited ? concat(", ", bytes_text(address_space), " of address space (ulimit -v)") : "")};
  if (smaller >= comfortable) return finding;
  finding.verdict = smaller < least ? Verdict::bad : Verdict::warning;
  finding.remedy = "free memory, or raise the limit of the container or the shell (ulimit -v); " +
                   std::string("libtorch alone takes about 500 MiB in a rank");
  return finding;
}

Finding check_open_files(int64_t limit, int64_t ranks) {
  constexpr int64_t of_a_large_job = 1024;
  const int64_t needed = open_files_needed(ranks);
  Finding finding{Verdict::ok, "open files", concat("a process may have ", limit)};
  if (limit < needed) {
    finding.verdict = Verdict::bad;
    finding.remedy = concat(counted(ranks, "rank"), " on this machine need ", needed, ": raise the limit (ulimit -n)");
  } else if (limit < of_a_large_job) {
    finding.verdict = Verdict::warning;
    finding.remedy = "raise the limit (ulimit -n) for jobs of many ranks, each of which is a connection or more";
  }
  return finding;
}

Finding check_threads(int64_t ranks) {
  constexpr int64_t of_a_rank = 5;  // one thread that computes, and those that monitor, send and write
  const int64_t count = ranks * of_a_rank;
  try {
    require_threads(count);
    return {Verdict::ok, "threads", concat(count, " started")};
  } catch (const UserError& error) {
    return {Verdict::bad, "threads", concat("fewer than ", count, " can be started", under_process_limit()),
            error.what()};
  }
}

Finding check_run_directory(const std::filesystem::path& directory) {
  const char* const subject = "run directory";
  std::error_code ignored;
  std::filesystem::path folder = std::filesystem::absolute(directory, ignored).lexically_normal();
  while (!std::filesystem::exists(folder, ignored) && folder.has_parent_path() && folder != folder.parent_path()) {
    folder = folder.parent_path();
  }
  try {
    const std::filesystem::path trial = create_partial_folder(folder / "copus-doctor");
    struct Removed {
      const std::filesystem::path& path;
      ~Removed() {
        std::error_code error;
        std::filesystem::remove_all(path, error);
      }
    } const removed{trial};
    write_file_durably(trial / "written", std::string(4096, 'x'));
    replace_durably(trial / "written", trial / "renamed");
    if (read_text_file(trial / "renamed").size() != 4096) throw UserError("a file does not read back as written");
    const std::filesystem::path locked = trial / "locked";
    const Descriptor file(open_regular_file(locked, O_RDWR | O_CREAT).descriptor);
    const bool has_locks = lock_as_writer(file.number()) && is_file_locked(locked);
    const auto free = static_cast<int64_t>(std::filesystem::space(folder).available);
    constexpr auto little = static_cast<int64_t>(2048 * mebibyte);
    Finding finding{Verdict::ok, subject,
                    concat(folder.string(), ": files can be written", has_locks ? " and locked, " : ", ",
                           bytes_text(free), " free")};
    if (!has_locks) {
      finding.verdict = Verdict::warning;
      finding.remedy =
          "there are no file locks here, so nothing keeps two jobs out of one run directory: start one at "
          "a time, or take another file system";
    } else if (free < little) {
      finding.verdict = Verdict::warning;
      finding.remedy = "make room: a checkpoint takes 12 bytes a parameter, and a run keeps several";
    }
    return finding;
  } catch (const std::exception& error) {
    return {Verdict::bad, subject, error.what(),
            "give the user write permission or make room there, or name another " + std::string("folder by --run-dir")};
  }
}

Finding check_shared_memory(const std::filesystem::path& folder) {
  const char* const subject = "shared memory";
  const std::string remedy =
      "for NCCL and MPI on several ranks (Copus itself does not use it): docker run --shm-size=1g, "
      "in Kubernetes a volume emptyDir with medium: Memory at /dev/shm";
  std::error_code error;
  const std::filesystem::space_info space = std::filesystem::space(folder, error);
  if (error) return {Verdict::warning, subject, concat("there is no ", folder.string()), remedy};
  Finding finding{Verdict::ok, subject,
                  concat(bytes_text(static_cast<int64_t>(space.available)), " free in ", folder.string())};
  if (::access(folder.c_str(), W_OK) != 0) {
    finding.text = concat(folder.string(), " cannot be written");
  } else if (static_cast<double>(space.available) >= gibibyte) {
    return finding;
  }
  finding.verdict = Verdict::warning;
  finding.remedy = remedy;
  return finding;
}

namespace {

constexpr uint64_t peers_number = 0x0123456789abcdef;

// Acts as a rank whose memory another process reads: allows the reading, reports that, and waits until it is killed.
[[noreturn]] void be_read(int ready, volatile uint64_t* number) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  *number = peers_number;
  allow_peers_to_read();
  [[maybe_unused]] const ssize_t ignored = ::write(ready, "r", 1);
  while (true) ::pause();
}

// Acts as the rank that reads. The exit code has one bit for each of the two ways of reading that failed.
[[noreturn]] void read_other(pid_t other, int file, const uint64_t* number) {
  uint64_t copied = 0;
  const PeerAddress address{.process = other, .address = number};
  const bool is_read = read_peer(address, reinterpret_cast<std::byte*>(&copied), sizeof copied);
  std::array<char, 64> path{"/proc/"};
  char* end = std::to_chars(path.data() + 6, path.data() + 30, other).ptr;
  std::memcpy(end, "/fd/", 4);
  *std::to_chars(end + 4, path.data() + path.size() - 1, file).ptr = '\0';
  const bool is_mapped = ::open(path.data(), O_RDWR | O_CLOEXEC) >= 0;
  ::_exit((is_read && copied == peers_number ? 0 : 1) | (is_mapped ? 0 : 2));
}

}  // namespace

Finding check_peer_memory() {
  const char* const subject = "peer memory";
  const Descriptor file(::memfd_create("copus-doctor", MFD_CLOEXEC));
  const auto page = static_cast<size_t>(::sysconf(_SC_PAGESIZE));
  if (!file.is_open() || ::ftruncate(file.number(), static_cast<off_t>(page)) != 0) {
    return {Verdict::bad, subject,
            concat("no anonymous shared memory (memfd_create): ", std::generic_category().message(errno)),
            "several ranks on this machine cannot start: allow memfd_create in the container's seccomp profile"};
  }
  std::array<int, 2> ready{};
  if (::pipe2(ready.data(), O_CLOEXEC) != 0) return {Verdict::bad, subject, "no pipe can be made", "raise ulimit -n"};
  const Descriptor readable(ready[0]), writable(ready[1]);
  static uint64_t number = 0;
  const pid_t other = ::fork();
  if (other == 0) be_read(ready[1], &number);
  pollfd wait{.fd = ready[0], .events = POLLIN, .revents = 0};
  constexpr int most_milliseconds = 2000;
  int status = -1;
  if (other > 0 && ::poll(&wait, 1, most_milliseconds) == 1) {
    const pid_t reader = ::fork();
    if (reader == 0) read_other(other, file.number(), &number);
    if (reader < 0 || ::waitpid(reader, &status, 0) != reader) status = -1;
  }
  if (other > 0) {
    ::kill(other, SIGKILL);
    ::waitpid(other, nullptr, 0);
  }
  if (status == -1 || !WIFEXITED(status)) {
    return {Verdict::bad, subject, "no other process can be started" + under_process_limit(),
            "raise the limit of processes (ulimit -u, or pids.max of a container)"};
  }
  if (WEXITSTATUS(status) == 0) return {Verdict::ok, subject, "ranks can read and map each other's memory"};
  return {
      Verdict::warning, subject,
      concat("a rank cannot ", (WEXITSTATUS(status) & 2) != 0 ? "map" : "copy", " another one's memory"),
      "changes of layout are slower, and a lost rank's state may come from the last checkpoint: allow ptrace in the "
      "container (docker run --cap-add=SYS_PTRACE), set kernel.yama.ptrace_scope to 0 or 1"};
}

Finding check_clock(std::time_t now, bool is_synchronized) {
  constexpr std::time_t first_year = 1'767'225'600;  // 2026: a clock that shows an earlier time is wrong
  std::array<char, 32> text{};
  std::tm utc{};
  ::gmtime_r(&now, &utc);
  std::strftime(text.data(), text.size(), "%F %T UTC", &utc);
  if (now < first_year) {
    return {Verdict::warning, "clock", concat(text.data(), " is in the past"),
            "set the clock: downloads fail, and names of run directories mislead"};
  }
  if (!is_synchronized) {
    return {Verdict::warning, "clock", concat(text.data(), ", and no time server keeps it"),
            "for jobs of several machines run chrony or systemd-timesyncd, so that times in their logs compare"};
  }
  return {Verdict::ok, "clock", text.data()};
}

bool is_clock_synchronized() {
  timex clock{};
  const int state = ::adjtimex(&clock);
  return state != TIME_ERROR && (clock.status & STA_UNSYNC) == 0;
}

std::vector<Finding> check_variables(int64_t cores) {
  struct Harmful {
    const char *name, *value;  // a null value: any value
    const char* remedy;
  };
  constexpr auto harmful = std::to_array<Harmful>({
      {"NCCL_P2P_DISABLE", "1", "GPUs then communicate through host memory: unset it"},
      {"NCCL_SHM_DISABLE", "1", "GPUs of a machine then communicate over the network: unset it"},
      {"NCCL_IB_DISABLE", "1", "machines then communicate over TCP in place of InfiniBand: unset it"},
      {"NCCL_NVLS_ENABLE", "1", "sums then differ between repeated runs: unset it"},
      {"NCCL_ALGO", nullptr, "NCCL then cannot choose its algorithm by size: unset it"},
      {"NCCL_PROTO", nullptr, "NCCL then cannot choose its protocol by size: unset it"},
      {"NCCL_DEBUG", "TRACE", "this writes a line for each message: unset it"},
      {"CUDA_LAUNCH_BLOCKING", "1", "the host then waits for each kernel: unset it"},
      {"MALLOC_PERTURB_", nullptr, "each allocation is then filled: unset it"},
  });
  std::vector<Finding> findings;
  const auto warn = [&](const std::string& text, const std::string& remedy) {
    findings.push_back({Verdict::warning, "environment", text, remedy});
  };
  for (const Harmful& one : harmful) {
    const char* const value = std::getenv(one.name);
    if (value == nullptr || *value == '\0') continue;
    if (one.value == nullptr || std::string_view(value) == one.value) warn(concat(one.name, "=", value), one.remedy);
  }
  if (lack_of_hardware_queues()) {
    warn("CUDA_DEVICE_MAX_CONNECTIONS is below 8",
         "pipelines on GPUs are refused: unset it, and Copus sets 32 (clusters for Megatron-LM export 1)");
  }
  if (const char* const text = std::getenv("OMP_NUM_THREADS"); text != nullptr) {
    const int64_t threads = default_threads(1);
    if (threads > cores) {
      warn(concat("OMP_NUM_THREADS=", text), concat("threads then share ", counted(cores, "core"), ": unset it"));
    } else if (threads == 1 && cores > 1) {
      warn(concat("OMP_NUM_THREADS=", text),
           concat("a run of one rank then uses one of ", cores, " cores: unset it, or set train.threads"));
    }
  }
  if (findings.empty()) findings.push_back({Verdict::ok, "environment", "no variable that is known to harm"});
  return findings;
}

Finding check_launcher() {
  try {
    const std::optional<RankEnvironment> environment = read_rank_environment();
    if (!environment) return {Verdict::ok, "launcher", "none has started this process; copus train starts its ranks"};
    return {Verdict::ok, "launcher",
            concat("this process is rank ", environment->rank, " of ", environment->world_size, " (",
                   environment->size_variable, ")")};
  } catch (const UserError& error) {
    return {Verdict::bad, "launcher", "variables of a launcher are incomplete", error.what()};
  }
}

}  // namespace copus
