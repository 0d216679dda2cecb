#include "copus/orchestrator/policies/adapt_forecast.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <set>

#include "copus/base/error.h"
#include "copus/base/numbers/quantile.h"
#include "copus/base/text/units.h"
#include "copus/orchestrator/policies/goodput_ranking.h"
#include "copus/orchestrator/policies/move_value.h"
#include "copus/orchestrator/policies/policies.h"

namespace copus {

namespace {

// Number of intervals into which a run is divided. The critical batch is assumed to be constant within an interval. The
// first intervals are the shortest.
constexpr int64_t pieces_of_a_run = 64;

// The fastest candidate of each batch.
using FastestByBatch = std::map<int64_t, const Candidate*>;

FastestByBatch fastest_by_batch(const std::vector<Candidate>& candidates) {
  FastestByBatch fastest;
  for (const Candidate& candidate : candidates) {
    const Candidate*& best = fastest[candidate.configuration.global_batch];
    if (best == nullptr || candidate.step_seconds < best->step_seconds) best = &candidate;
  }
  return fastest;
}

// Returns the time that a run saves if it uses the best batch in each interval, as a fraction of the time that the run
// needs if it keeps the first batch. `law` gives the critical batch. If adapt.objective is to spare tokens, the
// function ignores batches whose statistical efficiency is below adapt.least_efficiency times that of the first batch.
double batch_saving(const JobConfig& config, const FastestByBatch& fastest, int64_t first_batch,
                    const TokensLeft& tokens, const EfficiencyLaw& law) {
  const auto tokens_of = [&](int64_t batch) { return static_cast<double>(batch * config.train.sequence_length); };
  const double first_throughput = fastest.at(first_batch)->throughput();
  const double least_worth = spares_tokens(config) ? config.adapt.least_efficiency : 0;
  double saved = 0;
  for (int64_t piece = 0; piece < pieces_of_a_run; ++piece) {
    const auto share = [](double border) { return std::pow(border / pieces_of_a_run, 2); };
    const auto place = static_cast<double>(piece);
    const double critical = law.critical_batch({.tokens = tokens.done + tokens.left * share(place + 0.5)});
    const double log_worth = law.log_worth(tokens_of(first_batch), critical, 1);
    double least_time = 1;
    for (const auto& [batch, candidate] : fastest) {
      const double worth = std::exp(law.log_worth(tokens_of(batch), critical, 1) - log_worth);
      if (worth < least_worth) continue;
      least_time = std::min(least_time, first_throughput / (candidate->throughput() * worth));
    }
    saved += (share(place + 1) - share(place)) * (1 - least_time);
  }
  return saved;
}

}  // namespace

AdaptForecast forecast_adapting(const JobConfig& config, std::vector<Candidate> candidates,
                                const Configuration& current, const TokensLeft& tokens,
                                const std::function<double(const ParallelStrategy&)>& pause_seconds,
                                const std::vector<EfficiencyLaw>& laws) {
  COPUS_CHECK(tokens.left > 0 && !laws.empty(), tokens.left, ", ", laws.size());
  const auto has_other_layout = [&](const Candidate& candidate) {
    return candidate.configuration.strategy != current.strategy;
  };
  constexpr int64_t moves_of_a_try = 2;
  if (config.adapt.most_relayouts < moves_of_a_try) std::erase_if(candidates, has_other_layout);
  const Candidate* const first = find_candidate(candidates, current);
  COPUS_CHECK(first != nullptr, to_string(current));
  const FastestByBatch fastest = fastest_by_batch(candidates);
  AdaptForecast forecast;
  forecast.fastest = *fastest.at(current.global_batch);
  const bool is_other = forecast.fastest.configuration != current;
  const double ratio = forecast.fastest.step_seconds / first->step_seconds;
  const double deviation = is_other ? std::hypot(forecast.fastest.relative_deviation, first->relative_deviation) : 0;
  constexpr double deviations_of_interval = 1.28;  // of 80 %
  const auto saving_at = [&](double deviations) { return 1 - ratio * std::exp(deviations * deviation); };
  forecast.layout_saving_low = saving_at(deviations_of_interval);
  forecast.layout_saving = saving_at(0);
  forecast.layout_saving_high = saving_at(-deviations_of_interval);

  std::vector<double> savings;
  for (const EfficiencyLaw& law : laws) {
    savings.push_back(ratio * batch_saving(config, fastest, current.global_batch, tokens, law));
  }
  forecast.batch_saving_low = quantile(savings, 0.1);
  forecast.batch_saving = quantile(savings, 0.5);
  forecast.batch_saving_high = quantile(savings, 0.9);

  std::set<ParallelStrategy> others;
  for (const Candidate& candidate : candidates) {
    if (has_other_layout(candidate)) others.insert(candidate.configuration.strategy);
  }
  forecast.relayouts = std::min(config.adapt.most_relayouts, moves_of_a_try * std::ssize(others));
  double pause = 0;
  for (const auto& [batch, candidate] : fastest) {
    pause = std::max(pause, pause_seconds(candidate->configuration.strategy));
  }
  const auto relayouts = static_cast<double>(forecast.relayouts);
  const double tries = relayouts / static_cast<double>(moves_of_a_try);
  const double steps = tokens.left / static_cast<double>(current.global_batch * config.train.sequence_length);
  forecast.cost = (relayouts * pause + tries * steps_of_a_trial * first->step_seconds) / (steps * first->step_seconds);
  return forecast;
}

std::vector<std::string> describe(const AdaptForecast& forecast) {
  const auto with_interval = [](double saving, double low, double high) {
    return concat(percent_of(saving), " (80 % interval ", percent_of(low), " to ", percent_of(high), ")");
  };
  std::vector<std::string> lines;
  const std::string fastest = to_string(forecast.fastest.configuration);
  lines.push_back(
      forecast.layout_saving > 0
          ? concat("by its layout ",
                   with_interval(forecast.layout_saving, forecast.layout_saving_low, forecast.layout_saving_high), ": ",
                   fastest, " is predicted to be the fastest")
          : concat("nothing by its layout: ", fastest, " is predicted to be the fastest"));
  lines.push_back(concat("by its batch at most ",
                         with_interval(forecast.batch_saving, forecast.batch_saving_low, forecast.batch_saving_high),
                         " more, by published laws of the critical batch"));
  lines.push_back(concat("at a cost of ", percent_of(forecast.cost), " if it makes ",
                         counted(forecast.relayouts, "re-layout"), " (adapt.most_relayouts)"));
  lines.push_back(concat("adapting (adapt.policy = \"copus\") ", forecast.pays()      ? "is worth it"
                                                                 : forecast.may_pay() ? "may be worth it"
                                                                                      : "is not worth it"));
  return lines;
}

}  // namespace copus
