// What a run reports about its data sources before training.
#pragma once

#include <string>
#include <vector>

#include "copus/data/dataset.h"

namespace copus {

// Up to this many sources get one line each; of more, only the extremes are reported.
inline constexpr size_t most_sources_told = 8;

// Returns one line per source: its sequences, its fraction of the samples, and how often a run of `samples` samples (0:
// unknown) reads each sequence. With many sources, returns lines only for the most and the least read sources. For a
// single source, returns no line.
std::vector<std::string> describe_sources(const std::vector<TrainingSource>& sources, double samples);

// Returns lines about an evaluation: which sequences it reads, and each source's weight in its loss. Empty if it reads
// all of a single source.
std::vector<std::string> describe_evaluation(const std::vector<HeldOutSource>& sources,
                                             const std::vector<HeldOutPart>& read);

}  // namespace copus
