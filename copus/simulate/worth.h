// What a sample in a larger batch is really worth in a simulated training, relative to one in a batch of B -> 0, and
// how that and the noise scale change as the training goes on. Batches, noise scales and progress are in samples;
// progress counts the samples of a batch of B -> 0 that would have got as far.
#pragma once

#include <cstdint>

#include "copus/base/named_values.h"

namespace copus {

// How the worth falls with the batch.
enum class WorthShape {
  hyperbola,  // 1 / (1 + B / critical) (McCandlish et al. 2018, arXiv 1812.06162)
  root,       // the square root of that
  measured,   // a table that was measured by branching runs (worth.cpp)
};

template <>
inline constexpr auto named_values<WorthShape> = std::to_array<NamedValue<WorthShape>>(
    {{WorthShape::hyperbola, "hyperbola"}, {WorthShape::root, "root"}, {WorthShape::measured, "measured"}});

// Returns the worth, in (0, 1], of a sample in a batch of `batch` where the critical batch is `critical`; both > 0.
// `maturity` says where between its two measured stages a measured shape is: 0 at the first, 1 at the second.
double worth_of(WorthShape shape, double batch, double critical, double maturity);

// Ratio of the critical batch to the noise scale where the measured shape was measured.
inline constexpr double measured_calibration = 4.7;

// How the noise scale grows over a run.
enum class GrowthFamily {
  power,          // as a power of progress
  saturating,     // quickly at first, towards a limit
  falling_first,  // as a power, after a fall from a high beginning
  decay_jump,     // as a power, with a jump where the learning rate decays at the end
};
template <>
inline constexpr auto named_values<GrowthFamily> =
    std::to_array<NamedValue<GrowthFamily>>({{GrowthFamily::power, "power"},
                                             {GrowthFamily::saturating, "saturating"},
                                             {GrowthFamily::falling_first, "falling-first"},
                                             {GrowthFamily::decay_jump, "decay-jump"}});

// The course of one growth.
struct Growth {
  GrowthFamily family = GrowthFamily::power;
  double exponent = 0.5;     // of the power
  double time_constant = 1;  // of saturation, as a share of the run
  double excess = 0;         // of the beginning that falls: so many times more than the power gives
  double jump = 1;           // the factor at the decay

  // Returns the noise scale at this share of the run (1: its end), relative to the end of the power or of saturation.
  double at(double share) const;
};

// The loss, in nats per token, falls with the tokens D as least_loss + data_loss / D^data_exponent, beside the term of
// the model's size (Hoffmann et al. 2022, arXiv 2203.15556).
inline constexpr double least_loss = 1.69;
inline constexpr double data_loss = 410.7;
inline constexpr double data_exponent = 0.28;
// The critical batch is as the loss to minus this power (Kaplan et al. 2020, arXiv 2001.08361).
inline constexpr double critical_batch_exponent = 1 / 0.21;

// Returns the critical batch at this share of a run of `tokens`, relative to that at its end, by the loss, without the
// model's term and from at most that of guessing among 32000 tokens.
double kaplan_critical_batch(double share, double tokens);

// Returns the critical batch at this share of a run of `tokens`, relative to its plateau, as branched runs of OLMo have
// measured it: 2048 sequences at 168 B tokens and 4096, the plateau, at 503 B (Merrill et al. 2025, arXiv 2505.23971);
// a power law through both before that.
double olmo_critical_batch(double share, double tokens);

}  // namespace copus
