// What a run tells of its sources of data before it trains.
#pragma once

#include <string>
#include <vector>

#include "copus/data/dataset.h"

namespace copus {

// Sources that have a line each; of more, only the extremes are told.
inline constexpr size_t most_sources_told = 8;

// One line for each source: its sequences, its share of the samples, and how often a run of so many samples reads each
// of its sequences (0 samples: not known). Of many sources, two lines for those that are read most and least often. No
// line for a single source.
std::vector<std::string> describe_sources(const std::vector<TrainingSource>& sources, double samples);

// Lines that say what an evaluation reads, and what each source counts in its loss, in the same manner: none where all
// of a single source is read.
std::vector<std::string> describe_evaluation(const std::vector<HeldOutSource>& sources,
                                             const std::vector<HeldOutPart>& read);

}  // namespace copus
