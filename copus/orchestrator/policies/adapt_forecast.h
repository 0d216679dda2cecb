// Forecasts what adapting may save and cost in a run that has not begun, from predicted step times and published laws
// of the critical batch.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "copus/config/job_config.h"
#include "copus/orchestrator/policies/policy.h"
#include "copus/statistics/efficiency_belief.h"

namespace copus {

// Tokens that a run has consumed, and tokens to its end.
struct TokensLeft {
  double done = 0, left = 1;
};

// Savings and cost are shares of the seconds that the rest of the run takes if it stays in its first configuration.
struct AdaptForecast {
  Candidate fastest;  // at the batch in which the run begins
  // The predicted saving by moving to `fastest`, with its 80 % interval from the errors of both predicted step times.
  // The interval is too wide, because it treats the errors as independent although they have common causes. The saving
  // itself is somewhat too high, because the best of many predictions is too good on average.
  double layout_saving_low = 0, layout_saving = 0, layout_saving_high = 0;
  // The further saving if the run always used the best batch at that point of its progress, in that batch's fastest
  // layout. No policy saves more. The three values are the 10, 50 and 90 % quantiles over the laws.
  double batch_saving_low = 0, batch_saving = 0, batch_saving_high = 0;
  int64_t relayouts = 0;  // at most, by adapt.most_relayouts and the number of layouts
  double cost = 0;        // of these re-layouts, if every second one undoes a failed trial

  // Whether the savings exceed the cost: at the low ends of both intervals, and at their middles.
  bool pays() const { return layout_saving_low + batch_saving_low > cost; }
  bool may_pay() const { return layout_saving + batch_saving > cost; }
};

// Returns the forecast for the rest of a run that begins in `current`, which must be one of the candidates. tokens.left
// must be above 0. `pause_seconds` returns the pause of a re-layout to a strategy; the cost is the longest pause among
// the fastest layouts of all batches. `laws` must contain at least one law. All laws are equally likely, and they
// depend on tokens alone.
AdaptForecast forecast_adapting(const JobConfig& config, std::vector<Candidate> candidates,
                                const Configuration& current, const TokensLeft& tokens,
                                const std::function<double(const ParallelStrategy&)>& pause_seconds,
                                const std::vector<EfficiencyLaw>& laws);

// Describes the forecast in lines for the user; the last line says whether adapting saves more than it costs.
std::vector<std::string> describe(const AdaptForecast& forecast);

}  // namespace copus
