// `copus bench comm`: compares Copus' collectives over shared memory with the collectives of the MPI library, on the
// same cores in one run. Its ranks run under mpirun if this build has MPI.
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "copus/base/error.h"
#include "copus/base/process/cores.h"
#include "copus/base/text/json_text.h"
#include "copus/base/text/units.h"
#include "copus/cli/option_checks.h"
#include "copus/comm/messages/mpi_world.h"
#include "copus/workshop/bench/comm_bench.h"
#include "copus/workshop/commands.h"
#include "copus/workshop/table.h"

namespace copus {
namespace {

constexpr int failure = 1, users_mistake = 2;  // exit codes of this program

struct CommCommandOptions {
  std::vector<int64_t> ranks{2, 4};
  int64_t largest = 128 << 20;
  int64_t rounds = 11;
  bool json = false;
};

// Runs a program, found in PATH, to its end, and returns its exit code.
int run_program_to_end(const std::vector<std::string>& command) {
  std::vector<char*> arguments;
  for (const std::string& part : command) arguments.push_back(const_cast<char*>(part.c_str()));
  arguments.push_back(nullptr);
  std::cout.flush();
  const pid_t child = ::fork();
  COPUS_CHECK(child >= 0, std::strerror(errno));
  if (child == 0) {
    ::execvp(arguments[0], arguments.data());
    ::_exit(127);
  }
  int status = 0;
  while (::waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  if (WIFEXITED(status) && WEXITSTATUS(status) == 127) {
    throw UserError(concat(command[0], " was not found; install Open MPI (Debian: apt-get install openmpi-bin)"));
  }
  // mpirun has its own exit codes, for example for a rank that a signal ended. They are treated as failures.
  const int exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : failure;
  return exit_code == 0 || exit_code == users_mistake ? exit_code : failure;
}

int start_with_mpirun(int64_t ranks, const std::vector<std::string>& arguments) {
  std::vector<std::string> command{"mpirun", "-n", std::to_string(ranks), "--oversubscribe", "--bind-to", "none"};
  // Open MPI needs this option if ranks share cores.
  if (ranks > usable_cores()) command.insert(command.end(), {"--mca", "mpi_yield_when_idle", "1"});
  if (::geteuid() == 0) command.emplace_back("--allow-run-as-root");
  command.push_back(std::filesystem::read_symlink("/proc/self/exe"));
  command.insert(command.end(), arguments.begin(), arguments.end());
  return run_program_to_end(command);
}

constexpr int comm_widths[] = {-15, 6, 12, 29, 29, 8};

void print_header() {
  std::cout << "fp32 sums over " << usable_cores()
            << " cores; medians and quartiles of a call; ratio: MPI's time over ours\n\n";
  print_cells(comm_widths, {"operation", "ranks", "bytes", "ours (quartiles) us", "MPI (quartiles) us", "ratio"});
}

void print_row(const nlohmann::json& row) {
  const auto microseconds = [&](const std::string& name) -> std::string {
    if (row[name].is_null()) return "-";
    const Quartiles seconds = get_quartiles(row, name);
    return format_quartiles(seconds.median < 1e-3 ? "%.1f" : "%.0f", seconds, 1e6);
  };
  print_cells(comm_widths,
              {row["operation"].get<std::string>(), std::to_string(row["ranks"].get<int64_t>()),
               format_bytes(row["bytes"].get<double>()), microseconds("seconds"), microseconds("mpi_seconds"),
               row["ratio"].is_null() ? "-" : format_number("%.2f", row["ratio"].get<double>())});
}

int run_comm_bench(const CommCommandOptions& options) {
  if (options.largest % static_cast<int64_t>(sizeof(float)) != 0) {
    throw UserError(concat("--largest ", options.largest, " is not a multiple of the 4 bytes of an element"));
  }
  const nlohmann::json request{{"largest", options.largest}, {"rounds", options.rounds}};
  const RankStarter start = has_mpi() ? start_with_mpirun : launch_ranks;
  if (!has_mpi()) {
    std::cerr << "copus bench comm: this build has no MPI library, so its columns stay empty; to compare, install Open "
                 "MPI (Debian: apt-get install libopenmpi-dev openmpi-bin) and build Copus again\n";
  }
  if (!options.json) print_header();
  nlohmann::json all_rows = nlohmann::json::array();
  for (const int64_t ranks : options.ranks) {
    for (const nlohmann::json& row : run_ranks(ranks, "collectives", request, start)) {
      all_rows.push_back(row);
      if (!options.json) print_row(row);
    }
  }
  if (options.json) {
    const nlohmann::json result{{"cores", usable_cores()}, {"rows", all_rows}};
    std::cout << json_text(result) << '\n' << std::flush;
  }
  return 0;
}

}  // namespace

void add_comm_bench(CLI::App& bench, CommandAction& action, RankJobs& jobs) {
  jobs["collectives"] = measure_collectives;
  auto options = std::make_shared<CommCommandOptions>();
  CLI::App& comm = *bench.add_subcommand(
      "comm", "All-reduce, reduce-scatter and all-gather between processes here, beside the MPI library's");
  comm.add_option("--ranks", options->ranks, "Numbers of ranks to measure")
      ->check(number_in(Range<int64_t>{2, 64}))
      ->capture_default_str();
  comm.add_option("--largest", options->largest, "Bytes of the largest vector; the others are powers of four")
      ->check(number_in(Range<int64_t>{4, int64_t{1} << 30}))
      ->capture_default_str();
  comm.add_option("--rounds", options->rounds, "Turns of each side")->check(at_least(1))->capture_default_str();
  comm.add_flag("--json", options->json, "Print one JSON object");
  comm.footer("Example:\n  copus bench comm --ranks 2 --largest 1048576");
  comm.callback([options, &action] { action = [options] { return run_comm_bench(*options); }; });
}

}  // namespace copus
