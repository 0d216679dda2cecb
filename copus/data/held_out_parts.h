// Which held-out samples an evaluation reads, where it does not read all of them.
#pragma once

#include <cstdint>
#include <vector>

namespace copus {

// What an evaluation reads of a source.
struct HeldOutPart {
  int64_t source;   // among the held-out sources
  int64_t samples;  // its first ones, at least one
  double weight;    // of its mean loss in the loss of the evaluation; those of all parts sum to 1
  bool operator==(const HeldOutPart&) const = default;
};

// Divides `samples` among sources that have `sizes` samples, each at least one, in proportion to `shares`, as far as
// each source has samples left. Each source gets at least one where there are as many samples as sources. Where there
// are fewer, sources that are spread evenly over the list get them, with a probability in proportion to their shares.
// The weights make the loss an estimate of the mean over the sources by their shares, whatever was read of each.
std::vector<HeldOutPart> held_out_parts(const std::vector<int64_t>& sizes, const std::vector<double>& shares,
                                        int64_t samples);

}  // namespace copus
