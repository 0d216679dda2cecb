// How the ranks of a job find each other, whoever started them.
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <sstream>
#include <string>
#include <utility>

#include "copus/base/error.h"
#include "copus/comm/job/launcher.h"
#include "copus/comm/job/meeting_place.h"
#include "copus/comm/job/tcp_store.h"
#include "copus/comm/messages/mpi_world.h"
#include "copus/comm/messages/tcp_world.h"
#include "copus/comm/rank_failure.h"
#include "copus/comm/shared_memory/shared_memory_world.h"

namespace copus {

namespace {

// Gives a function that tells what is left of the time that ranks get to come.
auto deadline_in(double seconds) {
  using Clock = std::chrono::steady_clock;
  using Seconds = std::chrono::duration<double>;
  const auto end = Clock::now() + std::chrono::duration_cast<Clock::duration>(Seconds(seconds));
  return [end] { return std::max(0.0, Seconds(end - Clock::now()).count()); };
}

// Rank 0 makes the segment and says where it is. It keeps the store, which it may serve, until all have come. Each rank
// joins as soon as it can, so that those that have come know what becomes of one another.
std::unique_ptr<World> meet_in_shared_memory(const RankEnvironment& environment, double wait_seconds) {
  const auto seconds_left = deadline_in(wait_seconds);
  const bool first = environment.rank == 0;
  const std::string prefix = concat("copus/", environment.attempt, "/");
  const auto joined = [&](int64_t rank) { return concat(prefix, "joined/", rank); };
  const auto join = [&](SharedSegment segment) {
    return join_shared_memory(std::make_shared<SharedSegment>(std::move(segment)), environment.rank,
                              environment.world_size, wait_seconds, true);
  };
  TcpStore store(environment.master_address, environment.master_port, first && !environment.launcher_serves_store,
                 wait_seconds);
  if (first) {
    SharedSegment segment = SharedSegment::create(environment.world_size);
    const std::string place = concat(::getpid(), ' ', segment.descriptor());
    std::unique_ptr<World> world = join(std::move(segment));
    store.set(prefix + "segment", place);
    for (int64_t rank = 1; rank < environment.world_size; ++rank) {
      if (store.get(joined(rank), seconds_left())) continue;
      world->health().report(did_not_come(rank, wait_seconds));
      world->health().check();
    }
    return world;
  }
  const std::optional<std::string> place = store.get(prefix + "segment", seconds_left());
  if (!place) throw RankFailure(did_not_come(0, wait_seconds));
  int64_t process = 0;
  int descriptor = -1;
  std::istringstream(*place) >> process >> descriptor;
  std::unique_ptr<World> world = join(SharedSegment::open(process, descriptor, environment.world_size));
  store.set(joined(environment.rank), "yes");
  return world;
}

// The store is there until all have come. After that nobody needs it any more.
std::unique_ptr<World> meet_over_tcp(const RankEnvironment& environment, double wait_seconds) {
  check_meeting_address(environment.master_address, environment.master_port, environment.local_world_size,
                        environment.world_size);
  const auto started = std::chrono::steady_clock::now();
  const auto seconds_left = deadline_in(wait_seconds);
  const bool first = environment.rank == 0;
  const auto key = [&](int64_t rank) { return concat("copus/", environment.attempt, "/tcp/", rank); };
  TcpStore store(environment.master_address, environment.master_port, first && !environment.launcher_serves_store,
                 wait_seconds);
  TcpMeeting meeting;
  meeting.host = own_host_towards(environment.master_address, environment.master_port);
  meeting.publish = [&](int64_t rank, const std::string& place) { store.set(key(rank), place); };
  meeting.find = [&](int64_t rank) { return store.get(key(rank), seconds_left()); };
  return join_tcp({.rank = environment.rank,
                   .size = environment.world_size,
                   .first_of_machine = environment.rank - environment.local_rank,
                   .num_of_machine = environment.local_world_size,
                   .wait_seconds = wait_seconds,
                   .started = started,
                   .watch = true},
                  meeting);
}

// Besides mpirun, SLURM is the only launcher that starts MPI programs. Its ranks on one machine share memory. Without
// `srun --mpi=...` most MPI libraries end the process, so that is left to jobs that name no other way to meet.
bool uses_mpi(const RankEnvironment& environment) {
  if (!has_mpi()) return false;
  if (environment.launcher == LauncherKind::open_mpi) return true;
  const bool one_machine = environment.local_world_size == environment.world_size;
  const bool meeting_place = !environment.master_address.empty() && environment.master_port != 0;
  return environment.launcher == LauncherKind::slurm && !one_machine &&
         (environment.launcher_serves_mpi || !meeting_place);
}

// An MPI library that does not know the launcher would take each rank for a job of its own.
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

MeetingPlace open_store(const MeetingAddress& address) {
  const auto store = std::make_shared<TcpStore>(address.host, address.port, address.serve, address.wait_seconds);
  const auto publish = [store, address](const std::string& name, const std::string& text) {
    try {
      store->set(name, text);
    } catch (const std::exception&) {
      throw RankFailure({-1, "", concat("the ranks' meeting place at ", address.host, ":", address.port, " is gone")});
    }
  };
  return {publish, [store](const std::string& name) { return store->get(name, 0); }};
}

int launch_healing_machine(const MachineOfJob& machine, const std::vector<std::string>& arguments,
                           const Healing& healing) {
  return launch_healing_machine(machine, arguments, healing, open_store);
}

std::unique_ptr<World> join_world(const RankEnvironment& environment, double wait_seconds) {
  if (uses_mpi(environment)) return join_same_rank_over_mpi(environment, wait_seconds);
  if (environment.local_world_size < environment.world_size) return meet_over_tcp(environment, wait_seconds);
  if (environment.launcher != LauncherKind::copus) return meet_in_shared_memory(environment, wait_seconds);
  return join_launched_ranks(environment, wait_seconds);
}

}  // namespace copus
