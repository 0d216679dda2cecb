// Ranks on several machines without GPUs, connected by an MPI library. Optional when Copus is built; without_mpi.cpp
// stands in where no MPI was found.
#pragma once

#include <memory>

#include "copus/comm/world.h"

namespace copus {

// Whether this build can join a world over MPI.
bool has_mpi();

// Joins the job that mpirun, srun or the like started this process for. Once per process: the end of the world ends
// MPI, and waits for the other ranks unless the job has failed or an exception is on its way. A failure is printed once
// for the whole job by the rank that found it; a rank that does not notice it in time is ended. Throws UserError where
// the build has no MPI or the MPI library cannot be used by several threads. Ends the process when the ranks do not
// come within `wait_seconds`, since MPI's own start cannot be interrupted.
std::unique_ptr<World> join_mpi(double wait_seconds);

}  // namespace copus
