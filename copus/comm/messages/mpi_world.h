// Ranks on several machines without GPUs, connected by an MPI library. Optional when Copus is built; without_mpi.cpp
// stands in where no MPI was found.
#pragma once

#include <memory>

#include "copus/comm/world.h"

namespace copus {

// Whether this build can join a world over MPI.
bool has_mpi();

// Joins the job that mpirun, srun or the like started this process for. A process does so once, since the end of the
// world ends MPI; it waits for the other ranks unless the job has failed or an exception is on its way. The rank that
// finds a failure prints it for the whole job, and a rank that does not notice it in time is ended. Throws UserError
// where the build has no MPI or the MPI library cannot be used by several threads. Ends the process when the ranks do
// not come within `wait_seconds`, since MPI's own start cannot be interrupted.
std::unique_ptr<World> join_mpi(double wait_seconds);

}  // namespace copus
