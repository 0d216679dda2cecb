// Starts a job: finds out whether this process was started as one of its ranks (by torchrun, SLURM, Open MPI or by our
// own launcher) and joins it, or starts the ranks itself and watches over them.
#pragma once

#include <cstdint>
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
  int64_t local_rank = 0;
  int64_t local_world_size = 1;
  std::string master_address;
  int64_t master_port = 0;
};

// Reads COPUS_*; RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR, MASTER_PORT; SLURM_*; OMPI_COMM_WORLD_*.
// Empty where the process is nobody's rank. Throws UserError for variables that contradict each other.
std::optional<RankEnvironment> read_rank_environment();

// Joins the job that the environment describes: over shared memory where all ranks are on one machine, else over MPI.
// Throws UserError when neither can be had, RankFailure when ranks do not come within `wait_seconds`.
std::unique_ptr<World> join_world(const RankEnvironment& environment, double wait_seconds);

// Starts `size` ranks of this program with the same arguments, waits for them, and returns the exit code of the job:
// that of rank 0, or 1 with one message on stderr when a rank died. SIGINT and SIGTERM go on to the ranks. No process
// and no memory outlives the call.
int launch_ranks(int64_t size, const std::vector<std::string>& arguments);

}  // namespace copus
