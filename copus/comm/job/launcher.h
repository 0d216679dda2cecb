// How a job starts. A process finds out whether torchrun, SLURM, Open MPI or Copus itself has started it as one of the
// ranks of a job, and then joins that; or it starts the ranks itself and watches over them.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "copus/comm/world.h"

namespace copus {

// Who started this process as which rank.
enum class LauncherKind { copus, torchrun, slurm, open_mpi };

struct RankEnvironment {
  LauncherKind launcher = LauncherKind::copus;
  int64_t rank = 0;
  int64_t world_size = 1;
  const char* size_variable = "";  // the environment variable that says so
  int64_t local_rank = 0;
  int64_t local_world_size = 1;
  // Where the ranks meet. Empty and 0 where the launcher names no place and the ranks are on several machines.
  std::string master_address;
  int64_t master_port = 0;
  bool launcher_serves_store = false;  // torchrun's agent serves a c10d store there: rank 0 is a client like the others
  bool launcher_serves_mpi = false;    // SLURM tells MPI libraries where the other ranks are (PMIx, PMI-2)
  bool has_agent = false;  // the parent of this process is torchrun's agent or SLURM's daemon, which outlives it
  std::string attempt;     // tells restarts of a job, and jobs that meet at the same place, from one another
  // From Copus' launcher: the inherited descriptor of the shared segment. -1 in a process that is to replace another
  // one; it gets a segment when it joins.
  int segment = -1;
  // From launch_healing_ranks: the inherited descriptor that Membership talks with the launcher through (-1: none), and
  // the number of this process.
  int control = -1;
  int64_t process = 0;
  // From launch_healing_machine: the inherited descriptor through which this rank hears that its launcher is there.
  int lifeline = -1;
  // From Copus' launchers: when the job began, in nanoseconds of the steady clock (job_start.h).
  std::optional<int64_t> job_start = {};
};

// Reads the first of these sets of variables that there is: COPUS_*; RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE,
// MASTER_ADDR, MASTER_PORT; OMPI_COMM_WORLD_*; SLURM_*. A launcher that another one started comes before it in this
// order. Empty where the process is nobody's rank, as in a shell or script that SLURM started. Throws UserError for
// variables that contradict each other, describe half a job, or are those of a launcher that is none of these.
std::optional<RankEnvironment> read_rank_environment();
// The same with other variables: `lookup` gives a variable's value, or null.
std::optional<RankEnvironment> read_rank_environment(const std::function<const char*(const char*)>& lookup);

// Joins the job that the environment describes. In a build with MPI, the ranks of mpirun connect over MPI, and so do
// those of SLURM on several machines, unless it was not told to serve MPI and a meeting place is named. All others
// connect over shared memory, or where they are on several machines over TCP.
// Throws UserError when that cannot be had, and RankFailure when ranks do not come within `wait_seconds`.
std::unique_ptr<World> join_world(const RankEnvironment& environment, double wait_seconds);
// What that world's messages go over: "MPI", "TCP", "shared memory".
const char* connection_of(const RankEnvironment& environment);

// Starts `size` ranks of this program with the same arguments, waits for them, and returns the exit code of the job:
// that of rank 0, or 1 with one message on stderr when a rank died. SIGINT and SIGTERM are passed on to the ranks. No
// process and no memory outlives the call. The process must have no threads that were started before the call, which
// would take the signals.
int launch_ranks(int64_t size, const std::vector<std::string>& arguments);
// What may happen in a job whose ranks come and go.
struct Healing {
  bool replaces = true;  // another process is started for each that is lost
  // How many times without progress others are started where all of a machine have ended (Membership::leave_note), and
  // how many times a job is begun again whose ranks were all killed before the first note.
  int64_t restarts = 3;
};
// The same for ranks that join through Membership (membership.h): when one fails, the others go on without it, and
// whoever replaces it comes in between two steps. A line on stderr tells of each failure. The job ends as above where
// nobody is left, where all wait for one another, for a mistake of the user, and for any error of a rank's own before
// the first note; the exit code is that of the last epoch's rank 0. A process that is to replace another one is told as
// its rank and world size (RankEnvironment) what these would be if it joined at once; they mean nothing once others
// come and go.
int launch_healing_ranks(int64_t size, const std::vector<std::string>& arguments, const Healing& healing);
// One machine of a job of several, each with a launcher process that starts the machine's ranks. All give the same but
// for `machine` and `serves_store`.
struct MachineOfJob {
  int64_t machine = 0, num_machines = 1, ranks_per_machine = 1;
  // Where the launchers and the ranks meet: MASTER_ADDR, MASTER_PORT. The store there lasts for as long as the job.
  std::string address = {};
  int64_t port = 0;
  std::string attempt = {};   // as in RankEnvironment
  bool serves_store = false;  // this launcher keeps the store; otherwise torchrun's agent or another launcher does
};
// The same as launch_healing_ranks over several machines. The launcher of machine 0 decides for all, and it tells what
// happens and how the job ends; the others return the job's exit code. When a machine goes, the others go on without
// it; when machine 0 goes, they end with 1 and a message. SIGTERM and SIGINT end the whole job at machine 0; at another
// they ask its ranks to leave, and its launcher returns 0 once the others have gone on. Throws UserError when the
// launchers do not find each other.
int launch_healing_machine(const MachineOfJob& machine, const std::vector<std::string>& arguments,
                           const Healing& healing);
// What join_world does in a rank that launch_ranks has started, in a program with libtorch or without.
std::unique_ptr<World> join_launched_ranks(const RankEnvironment& environment, double wait_seconds);

}  // namespace copus
