// Defines the true statistical efficiency ("worth") of a batch in a simulated training, and how the worth and the noise
// scale change over the run. The worth is the progress of one sample in a batch of B, relative to one sample in a
// vanishing batch (B -> 0). Batches, noise scales and progress are in samples. Progress is the number of samples that a
// vanishing batch would need to reach the same point.
#pragma once

#include <cstdint>

#include "copus/base/named_values.h"

namespace copus {

// How the worth of a sample falls with the batch.
enum class WorthShape {
  hyperbola,  // 1 / (1 + B / critical) (McCandlish et al. 2018, arXiv 1812.06162)
  root,       // the square root of the hyperbola
  measured,   // a table measured by branches of a run (worth.cpp)
};

template <>
inline constexpr auto named_values<WorthShape> = std::to_array<NamedValue<WorthShape>>(
    {{WorthShape::hyperbola, "hyperbola"}, {WorthShape::root, "root"}, {WorthShape::measured, "measured"}});

// Returns the worth, in (0, 1], of a sample in a batch of `batch` samples, for the critical batch `critical`; both > 0.
// For the measured shape, `maturity` interpolates between the shape's two stages: 0 is the first stage, 1 the second.
double worth_of(WorthShape shape, double batch, double critical, double maturity);

// Critical batch / noise scale in the runs with which the measured shape was measured.
inline constexpr double measured_calibration = 4.7;

// How the noise scale grows over a run.
enum class GrowthFamily {
  power,          // as a power of progress
  saturating,     // fast at first, towards a limit
  falling_first,  // as a power, after a fall from a high initial value
  decay_jump,     // as a power, with a jump where the learning rate decays at the end
};
template <>
inline constexpr auto named_values<GrowthFamily> =
    std::to_array<NamedValue<GrowthFamily>>({{GrowthFamily::power, "power"},
                                             {GrowthFamily::saturating, "saturating"},
                                             {GrowthFamily::falling_first, "falling-first"},
                                             {GrowthFamily::decay_jump, "decay-jump"}});

// The parameters of one growth.
struct Growth {
  GrowthFamily family = GrowthFamily::power;
  double exponent = 0.5;     // of the power
  double time_constant = 1;  // of saturation, as a share of the run
  double excess = 0;         // initial value / value of the power - 1
  double jump = 1;           // the factor at the decay

  // Returns the noise scale at this fraction of the run (1: its end), relative to the final value of the underlying
  // power or saturation curve.
  double at(double share) const;
};

// The loss in nats per token falls with the tokens D as least_loss + data_loss / D^data_exponent, plus a term for the
// model's size (Hoffmann et al. 2022, arXiv 2203.15556).
inline constexpr double least_loss = 1.69;
inline constexpr double data_loss = 410.7;
inline constexpr double data_exponent = 0.28;
// The critical batch is proportional to the loss to minus this power (Kaplan et al. 2020, arXiv 2001.08361).
inline constexpr double critical_batch_exponent = 1 / 0.21;

// Returns the critical batch at this fraction of a run of `tokens`, relative to the critical batch at the end of the
// run. Both follow from the loss above, without the term for the model's size. The loss is at most the loss of a
// uniform guess over 32000 tokens.
double kaplan_critical_batch(double share, double tokens);

// Returns the critical batch at this fraction of a run of `tokens`, as a fraction of the largest critical batch.
// Merrill et al. 2025 (arXiv 2505.23971) measured it in branches of OLMo runs. It was 2048 sequences after 168 billion
// tokens and 4096 after 503 billion, and did not grow further. Up to 503 billion tokens this function uses the power
// law through these two points.
double olmo_critical_batch(double share, double tokens);

}  // namespace copus
