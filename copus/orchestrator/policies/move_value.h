// Values a move in seconds: its expected saving minus its cost. The run may go back if the target turns out to be
// worse, and the value includes this option.
#pragma once

namespace copus {

// Number of steps that a failed trial spends in a layout: three steps until it is measured, the step of the decision,
// and the steps until the move back takes effect.
inline constexpr double steps_of_a_trial = 6;

// A move as predicted.
struct MoveProspect {
  // `gain` is ln(target's Goodput / current Goodput). `deviation` is the standard deviation of the part of `gain` that
  // a few steps in the target would reveal: 0 if they would reveal nothing.
  double gain = 0;
  double deviation = 0;
  double pause_seconds = 0;  // of the move, and of the one back
  double trial_seconds = 0;  // of the trial's steps, at their expected speed
  double price_seconds = 0;  // cost in any case
};

// Returns the seconds that the move is expected to save within the next `horizon_seconds`; negative if it costs time.
// The move is a trial: afterwards the run stays in the faster configuration. So a trial may save time even if the
// target is probably a little worse. Conversely, a target that is probably a little better may save less time than the
// pause takes.
//
// With the ratio r = exp(-x) of times, x ~ N(gain, deviation^2), s = E max(0, 1 - r) and l = E max(0, r - 1):
//   (horizon - pause) s - trial l - pause (1 + P(x < 0)) - price
// where s = P(x > 0) - exp(-gain + deviation^2 / 2) P(x > deviation^2), by the moments of the log-normal distribution.
double expected_seconds_saved(const MoveProspect& move, double horizon_seconds);

}  // namespace copus
