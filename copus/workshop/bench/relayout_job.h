// The work of the ranks of `copus bench relayout`, as jobs of run_ranks.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include "copus/comm/job/start/launcher.h"

namespace copus {

// The request of both jobs has "parameters" (a name of bench_model), "from" and "to" (complete configurations),
// "rounds", "device", "corpus" and "directory". The last two are paths; checkpoints go into the directory.

// Trains, switches and writes a checkpoint. The result has, for "there" and "back", fields of `copus bench relayout
// --json` (docs/benches.md), and two times of monotonic_seconds: "decided_at", when the checkpoint was started, and
// "written_at", when it was on the disk.
nlohmann::json measure_relayout_as_rank(const nlohmann::json& request, const RankEnvironment& environment);

// Resumes from the checkpoint of measure_relayout_as_rank. The result is the time at which all ranks were ready to
// step, on the same clock.
nlohmann::json measure_restart_as_rank(const nlohmann::json& request, const RankEnvironment& environment);

}  // namespace copus
