// Chooses the held-out samples of an evaluation that does not read all of them.
#pragma once

#include <cstdint>
#include <vector>

namespace copus {

// The part of a source that an evaluation reads.
struct HeldOutPart {
  int64_t source;   // index of the held-out source
  int64_t samples;  // number of samples read, from the source's beginning; at least one
  double weight;    // of the part's mean loss in the evaluation's loss; all weights sum to 1
  bool operator==(const HeldOutPart&) const = default;
};

// Divides `samples` among sources of `sizes` samples (each at least one) in proportion to `shares`, limited by the
// sizes. With at least as many samples as sources, each source gets at least one. With fewer samples than sources, as
// many sources are drawn, with probabilities in proportion to their shares and spread evenly over the list; each of
// them gets one sample. In both cases the weights make the loss an unbiased estimate of the share-weighted mean over
// sources.
std::vector<HeldOutPart> held_out_parts(const std::vector<int64_t>& sizes, const std::vector<double>& shares,
                                        int64_t samples);

}  // namespace copus
