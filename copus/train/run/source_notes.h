// What a run reports about its data sources before it trains.
#pragma once

#include <string>
#include <vector>

#include "copus/data/dataset.h"

namespace copus {

// Up to this many sources get a line each; with more, only the extremes are reported.
inline constexpr size_t most_sources_told = 8;

// Returns one line for each source: its sequences, its fraction of the samples, and how often a run of `samples`
// samples reads each sequence (0 samples: unknown). With many sources it returns two lines, for the sources that are
// read most and least often. Returns no line for a single source.
std::vector<std::string> describe_sources(const std::vector<TrainingSource>& sources, double samples);

// Returns lines, in the same format, that say which sequences an evaluation reads and the weight of each source in its
// loss. Empty if the evaluation reads all of a single source.
std::vector<std::string> describe_evaluation(const std::vector<HeldOutSource>& sources,
                                             const std::vector<HeldOutPart>& read);

}  // namespace copus
