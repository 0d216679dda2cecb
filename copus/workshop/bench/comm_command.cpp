// `copus bench comm`: our collectives over shared memory beside those of the MPI library, on the same cores in one run.
// The command starts itself again as the ranks, under mpirun where this build has MPI. Each rank takes part in both
// worlds, and the two sides take turns, so that what else the machine does hits both.
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <functional>
#include <iomanip>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "copus/base/durable_file.h"
#include "copus/base/error.h"
#include "copus/base/quantile.h"
#include "copus/base/units.h"
#include "copus/cli/option_checks.h"
#include "copus/comm/job/launcher.h"
#include "copus/comm/messages/mpi_world.h"
#include "copus/comm/shared_memory/shared_memory_world.h"
#include "copus/workshop/bench/mpi_collectives.h"
#include "copus/workshop/commands.h"
#include "copus/workshop/rank_results.h"

namespace copus {
namespace {

constexpr double seconds_per_turn = 0.02;
constexpr int64_t most_calls_per_turn = 2000;

struct Options {
  std::vector<int64_t> ranks{2, 4};
  int64_t largest = 128 << 20;
  int64_t rounds = 11;
  bool json = false;
  std::string as_rank;  // of the processes that the command starts: the file that rank 0 writes its rows to
};

constexpr OperationKind kinds[] = {OperationKind::all_reduce, OperationKind::reduce_scatter, OperationKind::all_gather};

// Powers of four, and the largest. Vectors that are cut into parts have an element for every rank: otherwise not all of
// them would have to wait for one another.
std::vector<int64_t> vector_sizes(OperationKind kind, int64_t ranks, int64_t largest) {
  const int64_t elements = kind == OperationKind::all_reduce ? 1 : ranks;
  const int64_t least = elements * static_cast<int64_t>(sizeof(float));
  std::vector<int64_t> sizes;
  for (int64_t bytes = 4; bytes < largest; bytes *= 4) {
    if (bytes >= least) sizes.push_back(bytes);
  }
  if (largest >= least) sizes.push_back(largest);
  return sizes;
}

// One rank's part in both worlds.
class Bench {
 public:
  Bench(World& world, MpiCollectives* mpi, int64_t largest)
      : world_(world), mpi_(mpi), input_(largest / sizeof(float)), output_(largest / sizeof(float)) {}

  nlohmann::json measure(OperationKind kind, int64_t bytes, int64_t rounds) {
    const int64_t count = bytes / static_cast<int64_t>(sizeof(float));
    std::vector<int64_t> counts(world_.size(), count / world_.size());
    for (int64_t i = 0; i < count % world_.size(); ++i) ++counts[i];

    const auto ours = [&] { call_ours(kind, count, counts); };
    const auto mpis = [&] { call_mpi(kind, count, counts); };
    check_result(kind, count, counts, ours);
    if (mpi_) check_result(kind, count, counts, mpis);
    // Zeros, so that sums of sums do not overflow.
    std::fill(input_.begin(), input_.end(), 0.0F);
    const int64_t our_calls = calls_per_turn(ours);
    const int64_t mpi_calls = mpi_ ? calls_per_turn(mpis) : 0;
    std::vector<double> our_seconds;
    std::vector<double> mpi_seconds;
    for (int64_t round = 0; round < rounds; ++round) {
      our_seconds.push_back(time_turn(ours, our_calls));
      if (mpi_) mpi_seconds.push_back(time_turn(mpis, mpi_calls));
    }

    const Quartiles our_timing = quartiles(our_seconds);
    nlohmann::json row{{"operation", to_string(kind)},
                       {"bytes", bytes},
                       {"ranks", world_.size()},
                       {"seconds", our_timing.median},
                       {"seconds_quartiles", {our_timing.lower, our_timing.upper}},
                       {"mpi_seconds", nullptr},
                       {"mpi_seconds_quartiles", nullptr},
                       {"ratio", nullptr}};
    if (mpi_) {
      const Quartiles mpi_timing = quartiles(mpi_seconds);
      row["mpi_seconds"] = mpi_timing.median;
      row["mpi_seconds_quartiles"] = {mpi_timing.lower, mpi_timing.upper};
      row["ratio"] = mpi_timing.median / our_timing.median;
    }
    return row;
  }

 private:
  void call_ours(OperationKind kind, int64_t count, const std::vector<int64_t>& counts) {
    Communicator& everyone = world_.everyone();
    if (kind == OperationKind::all_reduce) return everyone.all_reduce(input_.data(), count, DataType::float32);
    if (kind == OperationKind::all_gather) {
      return everyone.all_gather(input_.data(), output_.data(), counts, DataType::float32);
    }
    everyone.reduce_scatter(input_.data(), output_.data(), counts, DataType::float32);
  }

  void call_mpi(OperationKind kind, int64_t count, const std::vector<int64_t>& counts) {
    if (kind == OperationKind::all_reduce) return mpi_->all_reduce(input_.data(), count);
    if (kind == OperationKind::all_gather) return mpi_->all_gather(input_.data(), output_.data(), counts);
    mpi_->reduce_scatter(input_.data(), output_.data(), counts);
  }

  // Small whole numbers, whose sums are exact in any order.
  static float value(int64_t rank, int64_t index) { return static_cast<float>((rank + 1) * (index % 7 + 1)); }

  void check_result(OperationKind kind, int64_t count, const std::vector<int64_t>& counts,
                    const std::function<void()>& call) {
    const int64_t rank = world_.rank();
    for (int64_t i = 0; i < count; ++i) input_[i] = value(rank, i);
    std::fill_n(output_.begin(), count, 0.0F);
    call();
    const int64_t rank_sum = world_.size() * (world_.size() + 1) / 2;
    int64_t before = 0;
    for (int64_t member = 0; member < world_.size(); ++member) {
      const int64_t length = counts[member];
      for (int64_t i = 0; i < length; ++i) {
        const int64_t index = before + i;
        const float sum = static_cast<float>(rank_sum * (index % 7 + 1));
        const bool right = kind == OperationKind::all_reduce   ? input_[index] == sum
                           : kind == OperationKind::all_gather ? output_[index] == value(member, i)
                           : member == rank                    ? output_[i] == sum
                                                               : true;
        COPUS_CHECK(right, to_string(kind), " of ", count, " elements, element ", index);
      }
      before += length;
    }
  }

  int64_t calls_per_turn(const std::function<void()>& call) {
    const double seconds = std::min(time_turn(call, 1), time_turn(call, 3));
    return std::clamp(static_cast<int64_t>(seconds_per_turn / seconds), int64_t{1}, most_calls_per_turn);
  }

  // Seconds of one call, of the rank that takes longest: the same number on every rank.
  double time_turn(const std::function<void()>& call, int64_t calls) {
    world_.everyone().barrier();
    if (mpi_) mpi_->barrier();
    call();  // the caches and the other ranks are as in the midst of calls like it
    const auto started = std::chrono::steady_clock::now();
    for (int64_t i = 0; i < calls; ++i) call();
    const std::chrono::duration<double> passed = std::chrono::steady_clock::now() - started;
    double seconds = passed.count() / static_cast<double>(calls);
    world_.everyone().all_reduce(&seconds, 1, DataType::float64, Reduction::maximum);
    return seconds;
  }

  World& world_;
  MpiCollectives* mpi_;
  std::vector<float> input_;
  std::vector<float> output_;
};

// Rank 0 makes the shared segment, and the others open it through /proc.
std::unique_ptr<World> join_beside_mpi(MpiCollectives& mpi) {
  std::shared_ptr<SharedSegment> segment;
  int64_t process = ::getpid();
  int64_t descriptor = -1;
  if (mpi.rank() == 0) {
    segment = std::make_shared<SharedSegment>(SharedSegment::create(mpi.size()));
    descriptor = segment->descriptor();
  }
  mpi.broadcast(process, 0);
  mpi.broadcast(descriptor, 0);
  if (mpi.rank() != 0) {
    segment = std::make_shared<SharedSegment>(SharedSegment::open(process, static_cast<int>(descriptor), mpi.size()));
  }
  mpi.barrier();
  return join_shared_memory(segment, mpi.rank(), mpi.size(), default_wait_seconds, true);
}

int run_as_rank(const Options& options) {
  const std::unique_ptr<MpiCollectives> mpi = MpiCollectives::join();
  std::unique_ptr<World> world;
  if (mpi) {
    world = join_beside_mpi(*mpi);
  } else {
    const std::optional<RankEnvironment> environment = read_rank_environment();
    if (!environment) throw UserError("--as-rank is for the processes that 'copus bench comm' starts");
    world = join_launched_ranks(*environment, default_wait_seconds);
  }
  Bench bench(*world, mpi.get(), options.largest);
  nlohmann::json rows = nlohmann::json::array();
  for (const OperationKind kind : kinds) {
    for (const int64_t bytes : vector_sizes(kind, world->size(), options.largest)) {
      rows.push_back(bench.measure(kind, bytes, options.rounds));
    }
  }
  if (world->rank() == 0) {
    write_results(options.as_rank, rows.dump());
  }
  return 0;
}

// Runs a program, found in PATH, to its end; returns its exit code.
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
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

int start_ranks(int64_t ranks, const std::vector<std::string>& arguments) {
  if (!has_mpi()) return launch_ranks(ranks, arguments);
  std::vector<std::string> command{"mpirun", "-n", std::to_string(ranks), "--oversubscribe", "--bind-to", "none"};
  // What Open MPI wants to be told when ranks share cores.
  if (ranks > std::thread::hardware_concurrency()) command.insert(command.end(), {"--mca", "mpi_yield_when_idle", "1"});
  if (::geteuid() == 0) command.emplace_back("--allow-run-as-root");
  command.push_back(std::filesystem::read_symlink("/proc/self/exe"));
  command.insert(command.end(), arguments.begin(), arguments.end());
  return run_program_to_end(command);
}

nlohmann::json measure_with(int64_t ranks, const Options& options) {
  const MemoryFile results;
  const int exit_code =
      start_ranks(ranks, {"bench", "comm", "--as-rank", results.path(), "--largest", std::to_string(options.largest),
                          "--rounds", std::to_string(options.rounds)});
  const std::string text = read_text_file(results.path());
  if (exit_code != 0 || text.empty()) {
    throw InternalError(concat("the ", ranks, " ranks ended with exit code ", exit_code, "; their messages are above"));
  }
  return nlohmann::json::parse(text);
}

void print_header() {
  std::cout << "fp32 sums over " << std::thread::hardware_concurrency()
            << " cores; medians and quartiles of a call; ratio: MPI's time over ours\n\n"
            << "operation       ranks       bytes          ours (quartiles) us           MPI (quartiles) us   ratio\n";
}

void print_rows(const nlohmann::json& rows) {
  std::ostringstream out;
  const auto seconds = [&](const nlohmann::json& row, const std::string& name) {
    if (row[name].is_null()) {
      out << std::setw(29) << "-";
      return;
    }
    const nlohmann::json& quartiles = row[name + "_quartiles"];
    std::ostringstream text;
    text << std::fixed << std::setprecision(row[name].get<double>() < 1e-3 ? 1 : 0) << row[name].get<double>() * 1e6
         << " (" << quartiles[0].get<double>() * 1e6 << " to " << quartiles[1].get<double>() * 1e6 << ")";
    out << std::setw(29) << text.str();
  };
  for (const nlohmann::json& row : rows) {
    out << std::left << std::setw(15) << row["operation"].get<std::string>() << std::right << std::setw(6)
        << row["ranks"].get<int64_t>() << std::setw(12) << format_bytes(row["bytes"].get<double>());
    seconds(row, "seconds");
    seconds(row, "mpi_seconds");
    if (row["ratio"].is_null()) {
      out << std::setw(8) << "-";
    } else {
      out << std::fixed << std::setprecision(2) << std::setw(8) << row["ratio"].get<double>();
    }
    out << '\n';
  }
  std::cout << out.str() << std::flush;
}

int run_comm_bench(const Options& options) {
  if (!options.as_rank.empty()) return run_as_rank(options);
  if (options.largest % static_cast<int64_t>(sizeof(float)) != 0) {
    throw UserError(concat("--largest ", options.largest, " is not a multiple of the 4 bytes of an element"));
  }
  if (!options.json) print_header();
  nlohmann::json all_rows = nlohmann::json::array();
  for (const int64_t ranks : options.ranks) {
    const nlohmann::json rows = measure_with(ranks, options);
    all_rows.insert(all_rows.end(), rows.begin(), rows.end());
    if (!options.json) print_rows(rows);
  }
  if (options.json) {
    const nlohmann::json result{{"cores", std::thread::hardware_concurrency()}, {"rows", all_rows}};
    std::cout << result.dump() << '\n' << std::flush;
  }
  return 0;
}

}  // namespace

void add_comm_bench(CLI::App& bench, Action& action) {
  auto options = std::make_shared<Options>();
  CLI::App& comm = *bench.add_subcommand(
      "comm", "All-reduce, reduce-scatter and all-gather between processes here, beside the MPI library's");
  comm.add_option("--ranks", options->ranks, "Numbers of ranks to measure")
      ->check(CLI::Range(int64_t{2}, int64_t{64}))
      ->capture_default_str();
  comm.add_option("--largest", options->largest, "Bytes of the largest vector; the others are powers of four")
      ->check(CLI::Range(int64_t{4}, int64_t{1} << 30))
      ->capture_default_str();
  comm.add_option("--rounds", options->rounds, "Turns of each side")->check(at_least(1))->capture_default_str();
  comm.add_flag("--json", options->json, "Print one JSON object");
  comm.add_option("--as-rank", options->as_rank)->group("");
  comm.footer("Example:\n  copus bench comm --ranks 2 --largest 1048576");
  comm.callback([options, &action] { action = [options] { return run_comm_bench(*options); }; });
}

}  // namespace copus
