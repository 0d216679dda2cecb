#include "copus/orchestrator/policies/goodput_ranking.h"

#include <algorithm>
#include <numeric>

#include "copus/base/error.h"
#include "copus/base/text/units.h"
#include "copus/orchestrator/policies/policies.h"
#include "copus/record/batch_worth.h"

namespace copus {

namespace {

// The statistical efficiency of a sample in a batch of B, at the noise scale phi and at the ends of its interval. At
// phi itself, the learning rate is the rate that the run will have in this batch. At an end of the interval, it is the
// rate that the run would reach if phi were at that end. All are computed once per batch, because a table has thousands
// of candidates but few batches.
class Worths {
 public:
  struct Worth {
    int64_t batch = 0;
    double at_value = 0, at_low = 0, at_high = 0;
  };

  Worths(const JobConfig& config, const NoiseBelief& noise, const Situation& situation)
      : noise_(noise),
        rule_(rate_rule_of(config)),
        by_run_(config),
        consumed_samples_(static_cast<double>(situation.latest.consumed_samples)),
        rate_cap_(situation.rate_cap) {}

  const Worth& of(int64_t batch) {
    const auto known = std::find_if(worths_.begin(), worths_.end(), [&](const Worth& w) { return w.batch == batch; });
    if (known != worths_.end()) return *known;
    const auto critical_at = [&](double phi) { return by_run_.critical_batch(phi, consumed_samples_); };
    const auto at = [&](double phi, double rate_cap) {
      const double rate = rate_factor(rule_, static_cast<double>(batch), rate_cap);
      return by_run_.goodput_of_a_sample(batch, critical_at(phi), rate);
    };
    worths_.push_back({batch, at(noise_.value, rate_cap_), at(noise_.low, std::min(rate_cap_, critical_at(noise_.low))),
                       at(noise_.high, std::max(rate_cap_, critical_at(noise_.high)))});
    return worths_.back();
  }

 private:
  NoiseBelief noise_;
  RateRule rule_;
  BatchWorth by_run_;
  double consumed_samples_, rate_cap_;
  std::vector<Worth> worths_;
};

}  // namespace

std::string percent(double fraction) { return format_number("%+.1f %%", 100 * fraction); }

std::string percent_of(double fraction) { return format_number("%.1f %%", 100 * fraction); }

const Candidate& current_candidate(const Situation& situation) {
  const Candidate* const found = find_candidate(situation.candidates, situation.current);
  COPUS_CHECK(found != nullptr, to_string(situation.current));
  return *found;
}

std::optional<std::string> dwell_reason(const JobConfig& config, const Situation& situation) {
  if (situation.samples_since_switch >= config.adapt.dwell_samples) return std::nullopt;
  return concat(situation.samples_since_switch, " of ", config.adapt.dwell_samples,
                " samples since the last switch (adapt.dwell_samples)");
}

GoodputRanking::GoodputRanking(const JobConfig& config, const NoiseBelief& noise, const Situation& situation)
    : candidates_(situation.candidates), current_(current_candidate(situation)) {
  Worths worths(config, noise, situation);
  const Worths::Worth worth_now = worths.of(current_.configuration.global_batch);
  const Worths::Worth worth_at_first = worths.of(config.train.global_batch);
  current_goodput_ = current_.throughput() * worth_now.at_value;
  gains_.reserve(candidates_.size());
  least_efficiencies_.reserve(candidates_.size());
  for (const Candidate& candidate : candidates_) {
    const double speed = candidate.throughput() / current_.throughput();
    const Worths::Worth& worth = worths.of(candidate.configuration.global_batch);
    gains_.push_back({speed * worth.at_value / worth_now.at_value - 1, speed * worth.at_low / worth_now.at_low - 1,
                      speed * worth.at_high / worth_now.at_high - 1});
    least_efficiencies_.push_back(
        std::min({worth.at_value / worth_at_first.at_value, worth.at_low / worth_at_first.at_low,
                  worth.at_high / worth_at_first.at_high}));
  }
}

double GoodputRanking::gain_of(const Configuration& configuration) const {
  const Candidate* const found = find_candidate(candidates_, configuration);
  COPUS_CHECK(found != nullptr, to_string(configuration));
  return gains_of(*found).at_value;
}

std::vector<RankedCandidate> GoodputRanking::best() const {
  constexpr size_t most = 5;
  std::vector<size_t> order(candidates_.size());
  std::iota(order.begin(), order.end(), size_t{0});
  const size_t count = std::min(most, order.size());
  std::partial_sort(order.begin(), order.begin() + static_cast<std::ptrdiff_t>(count), order.end(),
                    [&](size_t a, size_t b) {
                      if (gains_[a].at_value != gains_[b].at_value) return gains_[a].at_value > gains_[b].at_value;
                      return a < b;
                    });
  std::vector<RankedCandidate> ranked;
  for (size_t i = 0; i < count; ++i) {
    const Candidate& candidate = candidates_[order[i]];
    const Gains& gains = gains_[order[i]];
    ranked.push_back({candidate.configuration, candidate.step_seconds, current_goodput_ * (1 + gains.at_value),
                      gains.at_low, gains.at_high});
  }
  return ranked;
}

}  // namespace copus
