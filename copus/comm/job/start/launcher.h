// Starts jobs. A process finds out whether it was started as a rank by torchrun, SLURM, Open MPI or Copus itself. If
// so, it joins that job. Otherwise it starts the ranks itself and monitors them.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "copus/comm/world.h"

namespace copus {

// The launcher that started this process as a rank.
enum class LauncherKind { copus, torchrun, slurm, open_mpi };

struct RankEnvironment {
  LauncherKind launcher = LauncherKind::copus;
  int64_t rank = 0;
  int64_t world_size = 1;
  const char* size_variable = "";  // the environment variable with the world size
  int64_t local_rank = 0;
  int64_t local_world_size = 1;
  // Where the ranks meet. Empty and 0 if the ranks are on several machines and the launcher names no place.
  std::string master_address;
  int64_t master_port = 0;
  bool launcher_serves_store = false;  // torchrun's agent serves a c10d store there, and rank 0 is a client too
  bool launcher_serves_mpi = false;    // SLURM tells MPI libraries where the other ranks are (PMIx, PMI-2)
  bool has_agent = false;  // the parent of this process is torchrun's agent or SLURM's daemon, which outlives it
  std::string attempt;     // distinguishes restarts of a job, and jobs that meet at the same place
  // The inherited descriptor of the shared segment, if Copus' launcher started this process. It is -1 in a replacement
  // process, which gets a segment when it joins.
  int segment = -1;
  // From launch_healing_ranks: the inherited descriptor for Membership's communication with the launcher (-1: none),
  // and the number of this process.
  int control = -1;
  int64_t process = 0;
  // From launch_healing_machine: the inherited descriptor with the launcher's signs of life.
  int lifeline = -1;
  // From Copus' launchers: when the job began, in nanoseconds of the steady clock (job_start.h).
  std::optional<int64_t> job_start = {};
};

// Reads the first of these sets of variables that exists: COPUS_*; RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE,
// MASTER_ADDR, MASTER_PORT; OMPI_COMM_WORLD_*; SLURM_*. In this order, a launcher comes before the launchers that may
// have started it. Returns nothing if the process is not a rank, for example in a shell or script that SLURM started.
// Throws UserError if variables contradict each other, describe a job incompletely, or belong to another launcher.
std::optional<RankEnvironment> read_rank_environment();
// The same for given variables: `lookup` returns a variable's value, or null.
std::optional<RankEnvironment> read_rank_environment(const std::function<const char*(const char*)>& lookup);

// Joins the job that the environment describes. Ranks connect as follows:
// - over MPI, in a build with MPI: ranks of mpirun, and ranks of SLURM on several machines unless a meeting place is
//   named and SLURM does not serve MPI;
// - over shared memory: all other ranks on one machine;
// - over TCP: all other ranks on several machines.
// Throws UserError if the connection is not possible, and RankFailure if ranks do not come within `wait_seconds`.
std::unique_ptr<World> join_world(const RankEnvironment& environment, double wait_seconds);
// The name of the transport that join_world chooses: "MPI", "TCP", "shared memory".
const char* connection_of(const RankEnvironment& environment);

// Starts `size` ranks of this program with the same arguments, waits for them, and returns the exit code of rank 0. If
// a rank died, returns 1 after one message on stderr. Forwards SIGINT and SIGTERM to the ranks. When the call returns,
// no process and no shared memory is left. The caller must not have started any threads, because they would receive the
// signals.
int launch_ranks(int64_t size, const std::vector<std::string>& arguments);
// Settings of a job whose ranks come and go.
struct Healing {
  bool replaces = true;  // a replacement is started for each lost process
  // Limits two kinds of restarts: (a) on a machine whose ranks have all ended (Membership::leave_note), processes are
  // started this many times without progress; (b) a job whose ranks were all killed before the first note is restarted
  // this many times.
  int64_t restarts = 3;
};
// Like launch_ranks, for ranks that join through Membership (membership.h). When a rank fails, the others continue
// without it, and its replacement joins between two steps. A line on stderr reports each failure. The job ends as with
// launch_ranks if all ranks are gone, if all ranks wait for one another, after a user's mistake, and after any rank's
// own error before the first note (Membership::leave_note). Returns the exit code of rank 0 in the last epoch.
//
// A replacement process gets the rank and world size (RankEnvironment) that it would have if it joined at once. Both
// become meaningless when other processes come or go.
int launch_healing_ranks(int64_t size, const std::vector<std::string>& arguments, const Healing& healing);
// One machine of a job on several machines. Each machine has a launcher process, which starts the machine's ranks. All
// launchers pass the same values except for `machine` and `serves_store`.
struct MachineOfJob {
  int64_t machine = 0, num_machines = 1, ranks_per_machine = 1;
  // MASTER_ADDR and MASTER_PORT, where the launchers and the ranks meet. The store at this address exists as long as
  // the job.
  std::string address = {};
  int64_t port = 0;
  std::string attempt = {};   // as in RankEnvironment
  bool serves_store = false;  // this launcher serves the store; otherwise torchrun's agent or another launcher does
};
// Like launch_healing_ranks, over several machines. The launcher of machine 0 decides for all, and reports events and
// the end of the job; the other launchers return the job's exit code. When another machine is lost, the job continues
// without it. When machine 0 is lost, the other machines end with code 1 and a message.
//
// SIGTERM and SIGINT at machine 0 end the whole job. At another machine, these signals make only its own ranks ask to
// leave; its launcher returns 0 once the job continues without them. Throws UserError if the launchers do not find each
// other.
int launch_healing_machine(const MachineOfJob& machine, const std::vector<std::string>& arguments,
                           const Healing& healing);
// join_world for a rank that launch_ranks has started. It is available in programs with and without libtorch.
std::unique_ptr<World> join_launched_ranks(const RankEnvironment& environment, double wait_seconds);

}  // namespace copus
