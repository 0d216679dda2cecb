// Chooses the held-out samples of an evaluation that does not read all of them.
#pragma once

#include <cstdint>
#include <vector>

namespace copus {

// The part of a source that an evaluation reads.
struct HeldOutPart {
  int64_t source;   // among the held-out sources
  int64_t samples;  // its first ones; at least one
  double weight;    // of its mean loss in the evaluation's loss; all weights sum to 1
  bool operator==(const HeldOutPart&) const = default;
};

// Divides `samples` among sources of `sizes` samples (each at least one) in proportion to `shares`, as far as each
// source has samples. With at least as many samples as sources, each source gets at least one. With fewer, sources
// spread evenly over the list get them, with probabilities in proportion to their shares. The weights make the loss an
// estimate of the mean over the sources by their shares, whichever samples are read.
std::vector<HeldOutPart> held_out_parts(const std::vector<int64_t>& sizes, const std::vector<double>& shares,
                                        int64_t samples);

}  // namespace copus
