// Values a move in seconds: what it is expected to save, less what it costs, with the option to go back where the
// target turns out to be worse.
#pragma once

namespace copus {

// Number of steps after which a layout that was tried and is worse has been left: three after a switch, the one in
// which the decision falls, and the lead of the move back.
inline constexpr double steps_of_a_trial = 6;

// A move as it looks beforehand.
struct MoveProspect {
  // Logarithm of the target's Goodput over the current one's, and one standard deviation of what some steps in the
  // target would tell about it: 0 where nothing is left to be told.
  double gain = 0;
  double deviation = 0;
  double pause_seconds = 0;  // of the move, and of the one back
  double trial_seconds = 0;  // of the steps that tell, at their expected speed
  double price_seconds = 0;  // that are lost whatever comes of it
};

// Returns the seconds that the move is expected to save of the next `horizon_seconds`. After the trial the run stays
// where its Goodput is higher, so that a target which is probably somewhat worse may be worth a try, and one that is
// probably somewhat better not the pause. Below 0 where it costs.
//
// With the ratio r = exp(-x) of times, x ~ N(gain, deviation^2), s = E max(0, 1 - r) and l = E max(0, r - 1):
//   (horizon - pause) s - trial l - pause (1 + P(x < 0)) - price
// where s = P(x > 0) - exp(-gain + deviation^2 / 2) P(x > deviation^2), by the moments of the log-normal distribution.
double expected_seconds_saved(const MoveProspect& move, double horizon_seconds);

}  // namespace copus
