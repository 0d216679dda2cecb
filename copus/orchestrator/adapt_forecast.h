// What adapting may save a run that has not begun, and what it may cost: by the predicted steps, and by published laws
// of the critical batch.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "copus/config/job_config.h"
#include "copus/orchestrator/policy.h"
#include "copus/statistics/efficiency_belief.h"

namespace copus {

// The way of a run that is left, in tokens.
struct TokensLeft {
  double done = 0, left = 1;
};

// Shares are of the seconds that the rest of the run takes in the configuration in which it begins.
struct AdaptForecast {
  Candidate fastest;  // at the batch in which the run begins
  // What `fastest` saves, as predicted, with its 80 % interval by the errors of both predictions. The two errors
  // overlap, which makes the interval too wide, and the best of many predictions is too good, which it does not know.
  double layout_saving_low = 0, layout_saving = 0, layout_saving_high = 0;
  // What the best batch at each moment, in its fastest layout, saves beyond that on the way to the same progress: the
  // quantiles of 10, 50 and 90 % over the laws. No rule saves more.
  double batch_saving_low = 0, batch_saving = 0, batch_saving_high = 0;
  int64_t relayouts = 0;  // that adapt.most_relayouts and the layouts that there are allow
  double cost = 0;        // of all of them, where half are tries of layouts that are no faster

  // Tells whether the low ends of both savings are more than the cost, and whether the middles are.
  bool pays() const { return layout_saving_low + batch_saving_low > cost; }
  bool may_pay() const { return layout_saving + batch_saving > cost; }
};

// Forecasts the rest of a run, left > 0, that begins in `current`, which is among the candidates. `pause_seconds` is
// the pause of a re-layout to a strategy; of those to the fastest layout of each batch the longest counts. `laws` are
// equally likely, at least one; they go by tokens alone.
AdaptForecast forecast_adapting(const JobConfig& config, std::vector<Candidate> candidates,
                                const Configuration& current, const TokensLeft& tokens,
                                const std::function<double(const ParallelStrategy&)>& pause_seconds,
                                const std::vector<EfficiencyLaw>& laws);

// Describes it in lines for the user; the last one says whether adapting is worth it.
std::vector<std::string> describe(const AdaptForecast& forecast);

}  // namespace copus
