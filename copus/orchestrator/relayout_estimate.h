// What a re-layout costs before one was measured.
#pragma once

#include "copus/config/run_config.h"

namespace copus {

// Seconds for which training would stand still while one rank takes the whole state over the slowest link of the job:
// the most that a plan can ask of a rank.
double estimated_relayout_seconds(const RunConfig& config);

}  // namespace copus
