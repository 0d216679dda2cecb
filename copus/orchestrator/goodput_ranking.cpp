#include "copus/orchestrator/goodput_ranking.h"

#include <algorithm>
#include <numeric>

#include "copus/base/error.h"
#include "copus/base/units.h"
#include "copus/orchestrator/policies.h"
#include "copus/statistics/efficiency.h"

namespace copus {

namespace {

// Values of a sample in a batch of B, at phi and at the ends of its interval, computed once per batch: a table has
// thousands of candidates, but few batches.
class Worths {
 public:
  struct Worth {
    int64_t batch = 0;
    double at_value = 0, at_low = 0, at_high = 0;
  };

  Worths(const RunConfig& config, const NoiseBelief& noise) : config_(config), noise_(noise) {}

  const Worth& of(int64_t batch) {
    const auto known = std::find_if(worths_.begin(), worths_.end(), [&](const Worth& w) { return w.batch == batch; });
    if (known != worths_.end()) return *known;
    const auto at = [&](double phi) {
      return goodput(1, static_cast<double>(batch), copus::critical_batch(config_.noise_scale.calibration, phi),
                     static_cast<double>(config_.train.global_batch), config_.adapt.alpha);
    };
    worths_.push_back({batch, at(noise_.value), at(noise_.low), at(noise_.high)});
    return worths_.back();
  }

 private:
  const RunConfig& config_;
  NoiseBelief noise_;
  std::vector<Worth> worths_;
};

}  // namespace

NoiseBelief believed_noise(const Observation& observation) {
  NoiseBelief noise;
  noise.low = observation.noise_scale_low.value_or(0);
  if (observation.noise_scale && observation.noise_scale_high) {
    noise.value = *observation.noise_scale;
    noise.high = *observation.noise_scale_high;
  } else {
    noise.value = noise.low;
  }
  return noise;
}

std::string describe(const NoiseBelief& noise) {
  const std::string low = format_number("%.3g", noise.low);
  if (noise.is_bounded()) return concat("noise scale ", low, " .. ", format_number("%.3g", noise.high));
  if (noise.low > 0) return concat("noise scale at least ", low, " (|G|^2 is not significant)");
  return "noise scale not measured";
}

std::string percent(double fraction) { return format_number("%+.1f %%", 100 * fraction); }

const Candidate& current_candidate(const Situation& situation) {
  const Candidate* const found = find_candidate(situation.candidates, situation.current);
  COPUS_CHECK(found != nullptr, to_string(situation.current));
  return *found;
}

std::optional<std::string> dwell_reason(const RunConfig& config, const Situation& situation) {
  if (situation.samples_since_switch >= config.adapt.dwell_samples) return std::nullopt;
  return concat(situation.samples_since_switch, " of ", config.adapt.dwell_samples,
                " samples since the last switch (adapt.dwell_samples)");
}

GoodputRanking::GoodputRanking(const RunConfig& config, const NoiseBelief& noise, const Situation& situation)
    : candidates_(situation.candidates),
      critical_batch_(copus::critical_batch(config.noise_scale.calibration, noise.value)) {
  Worths worths(config, noise);
  const Candidate& current = current_candidate(situation);
  const Worths::Worth worth_now = worths.of(current.configuration.global_batch);
  current_goodput_ = current.throughput() * worth_now.at_value;
  gains_.reserve(candidates_.size());
  for (const Candidate& candidate : candidates_) {
    const double speed = candidate.throughput() / current.throughput();
    const Worths::Worth& worth = worths.of(candidate.configuration.global_batch);
    gains_.push_back({speed * worth.at_value / worth_now.at_value - 1, speed * worth.at_low / worth_now.at_low - 1,
                      speed * worth.at_high / worth_now.at_high - 1});
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
