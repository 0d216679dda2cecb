// Connects ranks on several machines without GPUs by an MPI library. This is an optional part of the build:
// without_mpi.cpp replaces it if there is no MPI.
#pragma once

#include <memory>

#include "copus/comm/world.h"

namespace copus {

// Whether this build can join a world over MPI.
bool has_mpi();

// Joins the job for which mpirun, srun or a similar launcher started this process. A process can join only once,
// because destroying the world shuts MPI down. The destructor waits for the other ranks, unless the job has failed or
// an exception is in flight. The rank that notices a failure prints it for the whole job. Ranks that do not react to
// the failure in time are ended.
//
// Throws UserError if the build has no MPI or the MPI library does not support several threads. If the ranks do not
// come within `wait_seconds`, ends the process, because MPI_Init cannot be interrupted.
std::unique_ptr<World> join_mpi(double wait_seconds);

}  // namespace copus
