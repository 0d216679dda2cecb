// Copus's policy: the highest Goodput over all configurations, with a price for each kind of move. The oracle is the
// same with the true noise scale.
#include <algorithm>
#include <cmath>
#include <sstream>
#include <string>

#include "copus/base/error.h"
#include "copus/base/units.h"
#include "copus/orchestrator/goodput_ranking.h"
#include "copus/orchestrator/policies.h"

namespace copus {

namespace {

// Limit of the price of an uncertain prediction, in thresholds: a candidate that promises enough is tried however
// uncertain it is, since only trying measures it, and tells the shared factors of all its neighbours.
constexpr double most_thresholds = 2;

// Base of the price of turning the batch back. The value of phi depends on the learning rate, and the learning rate on
// the batch (McCandlish et al. 2018, arXiv 1812.06162, and Gray et al. 2024, arXiv 2411.00999, disagree on the sign),
// so that each of two batches may look better from the other, for ever and beyond any threshold. The price of turning
// back grows with every turn that follows soon after the one before, and falls with the time since: a candidate that
// promises more waits for a part of that time alone, and no turn is ruled out for good.
constexpr double price_of_a_turn = 4;  // times the price of the turn before
constexpr double soon = 8;             // turns within so many times patience() are soon

double noise_at(const NoiseTrace& trace, double consumed_samples) {
  const auto after = std::upper_bound(trace.begin(), trace.end(), consumed_samples,
                                      [](double samples, const auto& point) { return samples < point.first; });
  if (after == trace.begin()) return trace.front().second;
  if (after == trace.end()) return trace.back().second;
  const auto before = std::prev(after);
  const double share = (consumed_samples - before->first) / (after->first - before->first);
  return before->second + share * (after->second - before->second);
}

class GoodputPolicy : public Policy {
 public:
  GoodputPolicy(RunConfig config, std::optional<NoiseTrace> truth)
      : config_(std::move(config)), truth_(std::move(truth)) {}

  Choice choose(const Situation& situation) override {
    follow(situation);
    const NoiseBelief noise = belief(situation.latest);
    const GoodputRanking ranking(config_, noise, situation);
    Choice choice;
    choice.best = ranking.best();
    if (const std::optional<std::string> why = dwell_reason(config_, situation)) {
      choice.predicted_gain = ranking.gain_of(choice.best.front().configuration);
      choice.reason = "holds: " + *why;
      return choice;
    }

    // Each move has a price, the gain that it must bring; the best is the one whose Goodput is highest once the price
    // is taken off. So a re-layout must be better by the difference of prices than a batch change that would do nearly
    // as well, and where both prices are equal the highest Goodput wins: the rule of arXiv 2604.26687.
    const Candidate* chosen = nullptr;
    double chosen_net = 1;
    for (const Candidate& candidate : situation.candidates) {
      const GoodputRanking::Gains& gains = ranking.gains_of(candidate);
      const double net = (1 + gains.at_value) / (1 + price(candidate, situation));
      if (candidate.configuration == situation.current || gains.at_value <= 0 || net < chosen_net) continue;
      if ((net == chosen_net && chosen != nullptr) || objection(candidate, gains, noise, situation)) continue;
      chosen = &candidate;
      chosen_net = net;
    }
    if (chosen != nullptr) {
      const GoodputRanking::Gains& gains = ranking.gains_of(*chosen);
      choice.target = chosen->configuration;
      choice.predicted_gain = gains.at_value;
      choice.reason = concat("Goodput ", percent(gains.at_value), " (", over_interval(gains), "; ", describe(noise),
                             ") with ", to_string(chosen->configuration), "; ", what_it_costs(*chosen, situation));
    } else if (const std::optional<Configuration> measurable = way_out_of_blindness(situation)) {
      choice.target = measurable;
      choice.predicted_gain = ranking.gain_of(*measurable);
      choice.reason = concat("a batch of one sample never shows the noise scale: to ", to_string(*measurable));
    } else {
      explain_hold(choice, ranking, noise, situation);
    }
    return choice;
  }

  NoiseBelief belief(const Observation& latest) const override {
    if (!truth_) return believed_noise(latest);
    const double phi = noise_at(*truth_, static_cast<double>(latest.consumed_samples));
    return {phi, phi, phi};
  }

 private:
  static int sign(int64_t difference) { return (difference > 0) - (difference < 0); }

  // Counts turns of the batch, up and down alike, whoever made them.
  void follow(const Situation& situation) {
    const int64_t switched_at = situation.latest.consumed_samples - situation.samples_since_switch;
    const int direction = last_ ? sign(situation.current.global_batch - last_->global_batch) : 0;
    if (direction != 0) {
      const double stayed = static_cast<double>(switched_at - batch_switched_at_);
      if (direction == -direction_) {
        turns_ = stayed < soon * patience() ? turns_ + 1 : 0;
      } else {
        turns_ = std::max(0, turns_ - 1);
      }
      direction_ = direction;
      batch_switched_at_ = switched_at;
    }
    last_ = situation.current;
  }

  // Number of samples after which one more turn costs no more than any other move.
  double patience() const {
    return static_cast<double>(config_.adapt.dwell_samples) * std::pow(price_of_a_turn, turns_);
  }

  static bool is_relayout(const Candidate& candidate, const Situation& situation) {
    return candidate.configuration.strategy != situation.current.strategy;
  }

  // The gain that a move must bring. The uncertainty of step times counts for re-layouts alone, since batches of one
  // layout share the errors of its prediction and a wrong batch change is taken back for free: a re-layout must not win
  // by less than one standard deviation of its own prediction. Measured cells are known to a percent or so; for them
  // the threshold decides.
  double price(const Candidate& candidate, const Situation& situation) const {
    double price = config_.adapt.batch_threshold;
    if (is_relayout(candidate, situation)) {
      const double threshold = config_.adapt.relayout_threshold;
      price = std::max(threshold, std::min(candidate.relative_deviation, most_thresholds * threshold));
    }
    return turns_back(candidate, situation) ? price * price_factor_of_turning(situation) : price;
  }

  bool turns_back(const Candidate& candidate, const Situation& situation) const {
    const int direction = sign(candidate.configuration.global_batch - situation.current.global_batch);
    return turns_ > 0 && direction != 0 && direction == -direction_;
  }

  double price_factor_of_turning(const Situation& situation) const {
    const auto since = static_cast<double>(situation.latest.consumed_samples - batch_switched_at_);
    return since >= patience() ? 1 : patience() / std::max(1.0, since);
  }

  static std::string over_interval(const GoodputRanking::Gains& gains) {
    return concat(percent(gains.at_low), " and ", percent(gains.at_high), " at the ends of the noise scale's interval");
  }

  std::string what_it_costs(const Candidate& candidate, const Situation& situation) const {
    const std::string required = percent(price(candidate, situation));
    const std::string turned =
        turns_back(candidate, situation) ? concat(" after ", turns_, " turns of the batch in short order") : "";
    if (!is_relayout(candidate, situation)) return concat("a change of batch must bring ", required, turned);
    return concat("a re-layout must bring ", required, turned, " and pauses for ",
                  format_duration(situation.relayout_seconds));
  }

  // Explains why the candidate must not be moved to, whatever its gain at phi itself; empty where it may. Gains are
  // monotonic in phi, so the ends of its interval stand for all of it.
  std::optional<std::string> objection(const Candidate& candidate, const GoodputRanking::Gains& gains,
                                       const NoiseBelief& noise, const Situation& situation) const {
    if (gains.at_value < price(candidate, situation)) {
      return concat("its gain of ", percent(gains.at_value), " is too small: ", what_it_costs(candidate, situation));
    }
    // A lower bound alone leaves every phi above it possible: a larger batch may be wanted, never a smaller one.
    if (!noise.is_bounded() && candidate.configuration.global_batch < situation.current.global_batch) {
      return concat("its batch is smaller, and there is no upper bound yet: ", describe(noise));
    }
    if (gains.at_low <= 0 || gains.at_high <= 0) {
      return concat("its gain of ", percent(gains.at_value),
                    " does not hold over the noise scale's interval: ", over_interval(gains), "; ", describe(noise));
    }
    const double seconds = situation.relayout_seconds;
    if (is_relayout(candidate, situation) && !(gains.at_value * (situation.latest.seconds_left - seconds) > seconds)) {
      return concat("its gain of ", percent(gains.at_value), " does not pay for a pause of ", format_duration(seconds),
                    " in the ", format_duration(std::max(0.0, situation.latest.seconds_left)), " that are left");
    }
    return std::nullopt;
  }

  // Finds the fastest candidate of the next larger batch, where the current one shows no noise scale and never will.
  std::optional<Configuration> way_out_of_blindness(const Situation& situation) const {
    if (truth_ || situation.current.global_batch > 1 || situation.latest.noise_scale_low) return std::nullopt;
    const Candidate* const best = fastest_near(situation, 1, [&](const Candidate& candidate) {
      return candidate.configuration.global_batch > 1 && !is_relayout(candidate, situation);
    });
    return best != nullptr ? std::optional(best->configuration) : std::nullopt;
  }

  // Explains what stands in the way of the best candidate.
  void explain_hold(Choice& choice, const GoodputRanking& ranking, const NoiseBelief& noise,
                    const Situation& situation) const {
    const Configuration& best = choice.best.front().configuration;
    if (best == situation.current) {
      choice.reason = concat("holds: nothing has a higher Goodput; ", describe(noise));
      return;
    }
    choice.predicted_gain = ranking.gain_of(best);
    const Candidate& candidate = *find_candidate(situation.candidates, best);
    const std::optional<std::string> why = objection(candidate, ranking.gains_of(candidate), noise, situation);
    choice.reason = concat("holds: best is ", to_string(best), "; ", why.value_or("it gains nothing"));
  }

  RunConfig config_;
  std::optional<NoiseTrace> truth_;
  std::optional<Configuration> last_;  // configuration at the decision before
  int direction_ = 0;                  // sign of the latest change of batch
  int64_t batch_switched_at_ = 0;      // in consumed samples
  int turns_ = 0;                      // turns of the batch in a row, each soon after the one before
};

}  // namespace

NoiseTrace parse_noise_trace(std::string_view text, const std::string& source) {
  NoiseTrace trace;
  std::istringstream lines{std::string(text)};
  std::string line;
  for (int64_t number = 1; std::getline(lines, line); ++number) {
    line = line.substr(0, line.find('#'));
    if (line.find_first_not_of(" \t\r") == std::string::npos) continue;
    std::istringstream fields(line);
    double samples = 0, phi = 0;
    std::string rest;
    if (!(fields >> samples >> phi) || fields >> rest || !(phi >= 0)) {
      throw UserError(concat(source, ":", number,
                             ": expected \"consumed_samples noise_scale\", two numbers, the noise scale in samples and "
                             "not negative; found \"",
                             line, "\""));
    }
    if (!trace.empty() && samples <= trace.back().first) {
      throw UserError(concat(source, ":", number, ": consumed samples must ascend, and ", samples, " follows ",
                             trace.back().first));
    }
    trace.emplace_back(samples, phi);
  }
  if (trace.empty()) {
    throw UserError(
        concat(source, ": adapt.policy \"oracle\" needs lines of \"consumed_samples noise_scale\"; there is none"));
  }
  return trace;
}

std::unique_ptr<Policy> make_goodput_policy(const RunConfig& config, std::optional<NoiseTrace> truth) {
  return std::make_unique<GoodputPolicy>(config, std::move(truth));
}

}  // namespace copus
