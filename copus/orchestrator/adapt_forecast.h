// What adapting may save a run that has not begun, and what it may cost: by the predicted steps, and by published laws
// of the critical batch.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "copus/config/job_config.h"
#include "copus/orchestrator/policy.h"
#include "copus/statistics/efficiency_belief.h"

namespace copus {

// Shares are of the seconds that the run takes in the configuration in which it begins.
struct AdaptForecast {
  Candidate fastest;  // at the batch in which the run begins
  // What `fastest` saves, as predicted, with its 80 % interval by the errors of both predictions. These are in part the
  // same, so that the interval is rather too wide.
  double layout_saving_low = 0, layout_saving = 0, layout_saving_high = 0;
  // What the best batch at each moment, in its fastest layout, saves beyond that on the way to the same progress: the
  // quantiles of 10, 50 and 90 % over the laws. No rule saves more.
  double batch_saving_low = 0, batch_saving = 0, batch_saving_high = 0;
  // What adapt.most_relayouts re-layouts cost where half of them are tries of layouts that are no faster.
  double most_cost = 0;

  // Tells whether what is expected to be saved is more than what moves may cost.
  bool pays() const { return layout_saving + batch_saving > most_cost; }
};

// Forecasts a run of so many tokens, > 0, that begins in `current`, which is among the candidates. `pause_seconds` is
// the pause of a re-layout to a strategy; the longest one counts. `laws` are equally likely, at least one; they go by
// tokens alone.
AdaptForecast forecast_adapting(const JobConfig& config, const std::vector<Candidate>& candidates,
                                const Configuration& current, double tokens,
                                const std::function<double(const ParallelStrategy&)>& pause_seconds,
                                const std::vector<EfficiencyLaw>& laws);

// Describes it in lines for the user; the last one says whether adapting is worth turning on.
std::vector<std::string> describe(const AdaptForecast& forecast, const JobConfig& config);

}  // namespace copus
