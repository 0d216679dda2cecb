// Lets the ranks of a job find each other, whichever launcher started them.
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <sstream>
#include <string>
#include <thread>
#include <utility>

#include "copus/base/error.h"
#include "copus/comm/health/process_state.h"
#include "copus/comm/job/meeting/meeting_place.h"
#include "copus/comm/job/meeting/tcp_store.h"
#include "copus/comm/job/start/launcher.h"
#include "copus/comm/job/start/launcher_watch.h"
#include "copus/comm/messages/mpi_world.h"
#include "copus/comm/messages/tcp_world.h"
#include "copus/comm/rank_failure.h"
#include "copus/comm/shared_memory/shared_memory_world.h"

namespace copus {

namespace {

// Returns a function that returns the remaining part of `seconds`, within which all ranks must arrive.
auto deadline_in(double seconds) {
  using Clock = std::chrono::steady_clock;
  using Seconds = std::chrono::duration<double>;
  const auto end = Clock::now() + std::chrono::duration_cast<Clock::duration>(Seconds(seconds));
  return [end] { return std::max(0.0, Seconds(end - Clock::now()).count()); };
}

// A store that the launcher serves exists before the ranks do. If it does not answer for this long, the launcher is
// gone.
constexpr double longest_wait_for_launchers_store = 30;
// If this process' launcher is gone, this process is ended within this time.
constexpr std::chrono::seconds time_to_be_ended(2);

// The store where ranks meet before they monitor each other's health.
class RankStore {
 public:
  RankStore(const RankEnvironment& environment, double wait_seconds)
      : environment_(environment), seconds_left_(deadline_in(wait_seconds)) {
    const bool serves = environment.rank == 0 && !environment.launcher_serves_store;
    try {
      store_ = TcpStore::open({.host = environment.master_address,
                               .port = environment.master_port,
                               .serve = serves,
                               .wait_seconds = environment.launcher_serves_store
                                                   ? std::min(wait_seconds, longest_wait_for_launchers_store)
                                                   : wait_seconds});
    } catch (const UserError&) {
      // Rank 0 serves the store, so rank 0 itself may be missing.
      if (!serves && !environment.launcher_serves_store) {
        throw RankFailure(
            told_once({0, start_of_job,
                       concat("nobody answered at ", environment.master_address, ":", environment.master_port,
                              " (MASTER_ADDR, MASTER_PORT) within ", wait_seconds, " s")}));
      }
      if (serves || is_next_to_first()) throw;
      throw RankFailure(
          {.place = start_of_job, .cause = "the ranks' meeting place cannot be reached", .announced = true});
    }
  }

  void set(const std::string& name, const std::string& text) {
    try {
      store_->set(key(name), text);
    } catch (const RankFailure&) {
      fail_without_store();
    }
  }

  // Returns nothing if no rank has set this name in time.
  std::optional<std::string> get(const std::string& name) {
    try {
      return store_->get(key(name), seconds_left_());
    } catch (const RankFailure&) {
      fail_without_store();
    }
  }

  // Marks the report as announced on all ranks of a machine except the first that notices the failure, so that the user
  // sees it once per machine.
  FailureReport told_once(FailureReport report) {
    if (report.announced) return report;
    report.announced = !is_first_to_tell();
    return report;
  }

 private:
  static constexpr const char* start_of_job = "the start of the job";

  int64_t first_of_machine() const { return environment_.rank - environment_.local_rank; }
  // Whether this rank is the one that reports a failure when the ranks cannot agree on a reporter. It is the first rank
  // of its machine. Rank 1 replaces rank 0, which may be the missing rank, unless rank 0 is alone on its machine.
  bool is_next_to_first() const {
    const bool is_alone = environment_.local_world_size == 1;
    return environment_.rank == (is_alone ? first_of_machine() : std::max<int64_t>(first_of_machine(), 1));
  }
  bool is_first_to_tell() {
    if (!store_) return is_next_to_first();
    try {
      return store_->is_first(key(concat("told/", first_of_machine())));
    } catch (const RankFailure&) {
      return is_next_to_first();
    }
  }
  std::string key(const std::string& name) const { return concat("copus/", environment_.attempt, "/", name); }

  // Fails because the process that serves the store is gone or stopped. If that process is also this rank's launcher,
  // the launcher watch (launcher_watch.h) reports it, and may end this process meanwhile.
  [[noreturn]] void fail_without_store() {
    store_.reset();
    if (!environment_.launcher_serves_store) {
      throw RankFailure(told_once({0, start_of_job, "the ranks' meeting place, which it serves, does not answer"}));
    }
    std::this_thread::sleep_for(time_to_be_ended);
    throw RankFailure(told_once({-1, start_of_job, "the ranks' meeting place does not answer any more"}));
  }

  const RankEnvironment environment_;
  const std::function<double()> seconds_left_;
  std::unique_ptr<TcpStore> store_;
};

// Rank 0 makes the segment and publishes where it is. Rank 0 keeps the store, which it may serve, until all ranks have
// joined. Each rank joins as soon as it can, so that the ranks that have joined can monitor each other.
std::unique_ptr<World> meet_in_shared_memory(const RankEnvironment& environment, double wait_seconds) {
  const auto joined = [](int64_t rank) { return concat("joined/", rank); };
  const auto join = [&](SharedSegment segment) {
    return join_shared_memory(std::make_shared<SharedSegment>(std::move(segment)), environment.rank,
                              environment.world_size, wait_seconds, true);
  };
  RankStore store(environment, wait_seconds);
  if (environment.rank == 0) {
    SharedSegment segment = SharedSegment::create(environment.world_size);
    const std::string place = concat(::getpid(), ' ', segment.descriptor());
    std::unique_ptr<World> world = join(std::move(segment));
    store.set("segment", place);
    for (int64_t rank = 1; rank < environment.world_size; ++rank) {
      if (store.get(joined(rank))) continue;
      world->health().report(did_not_come(rank, wait_seconds));
      world->health().check();
    }
    return world;
  }
  const std::optional<std::string> place = store.get("segment");
  if (!place) throw RankFailure(store.told_once(did_not_come(0, wait_seconds)));
  int64_t process = 0;
  int descriptor = -1;
  std::istringstream(*place) >> process >> descriptor;
  if (process_state(process) == ProcessState::gone) {
    throw RankFailure(
        store.told_once({0, "the start of the job", "its process ended, or is one of another container", process}));
  }
  std::unique_ptr<World> world = join(SharedSegment::open(process, descriptor, environment.world_size));
  store.set(joined(environment.rank), "yes");
  return world;
}

// The store is kept until all ranks have joined, and is not needed after that.
std::unique_ptr<World> meet_over_tcp(const RankEnvironment& environment, double wait_seconds) {
  check_meeting_address(environment.master_address, environment.master_port, environment.local_world_size,
                        environment.world_size);
  const auto started = std::chrono::steady_clock::now();
  const auto name = [](int64_t rank) { return concat("tcp/", rank); };
  RankStore store(environment, wait_seconds);
  TcpMeeting meeting;
  meeting.host = own_host_towards(environment.master_address, environment.master_port);
  meeting.publish = [&](int64_t rank, const std::string& place) { store.set(name(rank), place); };
  meeting.find = [&](int64_t rank) {
    std::optional<std::string> place = store.get(name(rank));
    // Rank 0 reports this itself: without it, no other rank monitors the job yet.
    if (!place && rank == 0) throw RankFailure(store.told_once(did_not_come(0, wait_seconds)));
    return place;
  };
  return join_tcp({.rank = environment.rank,
                   .size = environment.world_size,
                   .first_of_machine = environment.rank - environment.local_rank,
                   .num_of_machine = environment.local_world_size,
                   .wait_seconds = wait_seconds,
                   .started = started,
                   .watch = true},
                  meeting);
}

// Returns whether the ranks should connect over MPI. Only mpirun and SLURM start MPI programs, and SLURM's ranks on one
// machine use shared memory. Most MPI libraries end the process if `srun` was called without `--mpi=...`. So SLURM's
// ranks use MPI only if their job names no other way to meet.
bool uses_mpi(const RankEnvironment& environment) {
  if (!has_mpi()) return false;
  if (environment.launcher == LauncherKind::open_mpi) return true;
  const bool one_machine = environment.local_world_size == environment.world_size;
  const bool meeting_place = !environment.master_address.empty() && environment.master_port != 0;
  return environment.launcher == LauncherKind::slurm && !one_machine &&
         (environment.launcher_serves_mpi || !meeting_place);
}

// Checks the rank after joining: an MPI library that does not support the launcher treats each rank as a separate job.
std::unique_ptr<World> join_same_rank_over_mpi(const RankEnvironment& environment, double wait_seconds) {
  std::unique_ptr<World> world = join_mpi(wait_seconds);
  if (world->rank() != environment.rank || world->size() != environment.world_size) {
    throw UserError(concat("MPI says that this is rank ", world->rank(), " of ", world->size(),
                           ", the launcher that it is rank ", environment.rank, " of ", environment.world_size,
                           "; use the launcher that belongs to the MPI library (SLURM: srun --mpi=pmix)"));
  }
  return world;
}

}  // namespace

const char* connection_of(const RankEnvironment& environment) {
  if (uses_mpi(environment)) return "MPI";
  return environment.local_world_size < environment.world_size ? "TCP" : "shared memory";
}

std::optional<MeetingPlace> open_store(const MeetingAddress& address) {
  const std::shared_ptr<TcpStore> store = TcpStore::open(address);
  if (!store) return std::nullopt;
  return MeetingPlace{[store](const std::string& name, const std::string& text) { store->set(name, text); },
                      [store](const std::string& name) { return store->get(name, 0); }};
}

int launch_healing_machine(const MachineOfJob& machine, const std::vector<std::string>& arguments,
                           const Healing& healing) {
  return launch_healing_machine(machine, arguments, healing, open_store);
}

std::unique_ptr<World> join_world(const RankEnvironment& environment, double wait_seconds) {
  watch_launcher(environment);
  if (uses_mpi(environment)) return join_same_rank_over_mpi(environment, wait_seconds);
  if (environment.local_world_size < environment.world_size) return meet_over_tcp(environment, wait_seconds);
  if (environment.launcher != LauncherKind::copus) return meet_in_shared_memory(environment, wait_seconds);
  return join_launched_ranks(environment, wait_seconds);
}

}  // namespace copus
