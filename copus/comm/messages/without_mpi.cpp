// Replaces mpi_world.cpp in builds without MPI.
#include "copus/base/error.h"
#include "copus/comm/messages/mpi_world.h"

namespace copus {

bool has_mpi() { return false; }

std::unique_ptr<World> join_mpi(double /*wait_seconds*/) {
  throw UserError(
      "these ranks can only communicate over MPI, and this build has none; install an MPI library (Debian: apt-get "
      "install openmpi-bin libopenmpi-dev) and rebuild");
}

}  // namespace copus
