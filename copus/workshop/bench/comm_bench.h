// Runs a rank of `copus bench comm`: times Copus' collectives over shared memory and the collectives of the MPI
// library. Each rank uses both, and the two take turns, so that other load on the machine affects both.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include "copus/comm/job/start/launcher.h"

namespace copus {

// A job of run_ranks, whose ranks mpirun starts if this build has MPI. Request: "largest" (bytes, a multiple of 4) and
// "rounds". Result: the rows of `copus bench comm --json` (docs/benches.md), the same on every rank. Throws
// InternalError if a collective gives a wrong result.
nlohmann::json measure_collectives(const nlohmann::json& request, const RankEnvironment& environment);

}  // namespace copus
