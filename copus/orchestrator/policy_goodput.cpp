// Copus's policy: the move that is expected to save most time, over all configurations, with what it costs. The oracle
// is the same with the true noise scale.
#include <algorithm>
#include <cmath>
#include <set>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "copus/base/error.h"
#include "copus/base/units.h"
#include "copus/orchestrator/adapt_contract.h"
#include "copus/orchestrator/goodput_ranking.h"
#include "copus/orchestrator/move_value.h"
#include "copus/orchestrator/policies.h"
#include "copus/orchestrator/run_mark.h"
#include "copus/statistics/noise_scale.h"

namespace copus {

namespace {

// Number of steps after a switch before the next one: two that warm up, and one that counts. One is enough to leave a
// layout that something stalls.
constexpr int64_t least_steps = 3;

// The number of strategies that were never measured of which a decision forecasts the pause: the plan of one takes
// milliseconds where there are hundreds of ranks.
constexpr size_t most_forecasts = 4;

// What a change of the batch costs the optimizer, in steps: its second moments are those of the batch before for some
// 1 / (1 - beta2) = 20 of them. How much of these it loses has not been measured; in the simulated runs that the rule
// was chosen by, where it loses nothing, 0, 2 and 8 differed by 0.3 % of the time at most.
constexpr double steps_of_a_batch_change = 2;

// Share of the time left that all re-layouts left have to save together, each an equal part of it. adapt.most_relayouts
// makes them few: one that is spent on a small gain early in a run is missing later. A large gain pays at once, a small
// one when it has lasted for some time. Chosen by the chosen half of the simulated runs, in which 0.002 to 0.005 do
// equally well (docs/decisions/orchestrator.md).
constexpr double share_to_save_by_relayouts = 0.003;

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
  GoodputPolicy(JobConfig config, std::optional<NoiseTrace> truth)
      : config_(std::move(config)), truth_(std::move(truth)), contract_(config_) {}

  void observe(const Observation& latest, const Configuration& current) override { contract_.observe(latest, current); }

  Choice choose(const Situation& situation) override {
    follow(situation);
    const NoiseBelief noise = belief(situation.latest);
    const GoodputRanking ranking(config_, noise, situation);
    Choice choice;
    choice.best = ranking.best();
    const std::optional<AdaptContract::Breach> breach = contract_.breach();
    const Candidate* const smaller = breach ? way_back(*breach, situation) : nullptr;
    if (smaller != nullptr) {
      choice.target = smaller->configuration;
      choice.predicted_gain = ranking.gains_of(*smaller).at_value;
      choice.reason = concat("back to ", to_string(*choice.target), ", since ", contract_.describe(*breach));
      contract_.forbid(situation.current.global_batch, situation.latest.consumed_samples);
    } else if (const Saving most = most_saving(ranking, noise, situation); most.candidate != nullptr) {
      const GoodputRanking::Gains& gains = ranking.gains_of(*most.candidate);
      choice.target = most.candidate->configuration;
      choice.predicted_gain = gains.at_value;
      const double deviation = what_trying_tells(*most.candidate, situation);
      choice.reason = concat("Goodput ", percent(gains.at_value), " (", over_interval(gains), "; ", describe(noise),
                             ") with ", to_string(*choice.target), "; ",
                             deviation > 0 ? "a try, give or take " + percent_of(deviation) + ", that " : "",
                             "should save ", format_duration(most.seconds), " of the next ",
                             format_duration(horizon(situation)), what_it_costs(*most.candidate, situation));
    } else if (const Candidate* const sparing = way_out_of_waste(ranking, situation)) {
      choice.target = sparing->configuration;
      choice.predicted_gain = ranking.gains_of(*sparing).at_value;
      choice.reason =
          concat("to ", to_string(*choice.target), ", since ", waste(ranking.current(), ranking).value_or(""));
    } else if (const std::optional<Configuration> measurable = way_out_of_blindness(ranking, situation)) {
      choice.target = measurable;
      choice.predicted_gain = ranking.gain_of(*measurable);
      choice.reason = concat("a batch of one sample never shows the noise scale: to ", to_string(*measurable));
    } else {
      explain_hold(choice, ranking, noise, situation);
    }
    return choice;
  }

  void visit_state(StateValues& values) override {
    values(last_, direction_, batch_switched_at_, batch_seen_at_, turns_, contract_);
  }

  NoiseBelief belief(const Observation& latest) const override {
    if (!truth_) return believed_noise(latest);
    const double phi = noise_at(*truth_, static_cast<double>(latest.consumed_samples));
    return {phi, phi, phi};
  }

 private:
  // What a move to a candidate is expected to save, or at most saves.
  struct Saving {
    double seconds = 0;
    const Candidate* candidate = nullptr;
    bool is_exact = false;
  };

  // Finds the candidate that is expected to save most; none where staying does. Candidates come in the order of what
  // they would save without a pause, the first of equal ones first, until no later one can save more. Among thousands
  // only those are sorted, and only theirs is computed exactly, whose bound reaches so far. Forecasting a pause takes
  // milliseconds, so only the strategies to try that would save most get a forecast.
  Saving most_saving(const GoodputRanking& ranking, const NoiseBelief& noise, const Situation& situation) const {
    if (dwell_of_any(situation)) return {};
    std::vector<Saving> without_pause;
    without_pause.reserve(situation.candidates.size());
    for (const Candidate& candidate : situation.candidates) {
      if (candidate.configuration == situation.current || is_ruled_out(candidate, situation)) continue;
      const double at_most = most_seconds_saved(candidate, ranking, situation);
      if (at_most > 0) without_pause.push_back({at_most, &candidate});
    }
    const auto is_later = [](const Saving& a, const Saving& b) {
      if (a.seconds != b.seconds) return a.seconds < b.seconds;
      return a.is_exact != b.is_exact ? a.is_exact : a.candidate > b.candidate;
    };
    std::make_heap(without_pause.begin(), without_pause.end(), is_later);
    Saving most;
    std::set<ParallelStrategy> to_try;
    while (!without_pause.empty()) {
      std::pop_heap(without_pause.begin(), without_pause.end(), is_later);
      auto& [at_most, candidate, is_exact] = without_pause.back();
      if (at_most <= most.seconds) break;
      if (!is_exact) {
        at_most = seconds_saved(*candidate, ranking, situation, 0);
        is_exact = true;
        std::push_heap(without_pause.begin(), without_pause.end(), is_later);
        continue;
      }
      consider({at_most, candidate}, ranking, noise, situation, to_try, most);
      without_pause.pop_back();
    }
    return most;
  }

  // Makes a candidate the one to move to if it may be, and saves more with its pause than `most`.
  void consider(const Saving& without_pause, const GoodputRanking& ranking, const NoiseBelief& noise,
                const Situation& situation, std::set<ParallelStrategy>& to_try, Saving& most) const {
    const Candidate& candidate = *without_pause.candidate;
    if (prohibition(candidate, ranking, noise, situation)) return;
    if (is_relayout(candidate, situation) && !candidate.is_layout_measured) {
      const ParallelStrategy& strategy = candidate.configuration.strategy;
      if (to_try.size() == most_forecasts && !to_try.contains(strategy)) return;
      to_try.insert(strategy);
    }
    const double pause = pause_of(candidate, situation);
    if (dwell_of_a_try(candidate, situation, pause)) return;
    const double seconds = seconds_saved(candidate, ranking, situation, pause);
    if (seconds > most.seconds) most = {seconds, &candidate, true};
  }

  // A bound on seconds_saved without a pause that takes a square root: log(1 + gain) <= gain, 1 - exp(-x) <= x, and
  // E max(0, x) <= (sqrt(mean^2 + deviation^2) + mean) / 2 for any distribution. The factor is for rounding.
  double most_seconds_saved(const Candidate& candidate, const GoodputRanking& ranking,
                            const Situation& situation) const {
    const GoodputRanking::Gains& gains = ranking.gains_of(candidate);
    const double gain = std::min({gains.at_value, gains.at_low, gains.at_high});
    const double deviation = what_trying_tells(candidate, situation);
    const double share = (std::sqrt(gain * gain + deviation * deviation) + gain) / 2;
    constexpr double for_rounding = 1 + 1e-9;
    return for_rounding * share * horizon(situation) - price(candidate, situation);
  }

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
      batch_seen_at_ = RunMark(situation.latest.share_done);
    }
    batch_seen_at_.see(situation.latest.share_done);
    last_ = situation.current;
  }

  // Number of samples after which one more turn costs no more than any other move.
  double patience() const {
    return static_cast<double>(config_.adapt.dwell_samples) * std::pow(price_of_a_turn, turns_);
  }

  static bool is_relayout(const Candidate& candidate, const Situation& situation) {
    return candidate.configuration.strategy != situation.current.strategy;
  }

  // The seconds in which a move must pay: no more than are left, and no more than have passed, since what is best now
  // was not for longer, and the noise scale changes with the progress of the run.
  static double horizon(const Situation& situation) {
    return std::max(0.0, std::min(situation.latest.seconds_left, situation.latest.elapsed_seconds));
  }

  static double pause_of(const Candidate& candidate, const Situation& situation) {
    return is_relayout(candidate, situation) ? situation.pause_seconds(candidate.configuration.strategy) : 0;
  }

  // Tells whether a candidate has other micro-batches or another strategy: a step time of its own, which is known where
  // it was measured, in whatever batch.
  static bool has_own_speed(const Candidate& candidate, const Situation& situation) {
    return is_relayout(candidate, situation) || candidate.configuration.micro_batch != situation.current.micro_batch;
  }

  // The deviation of a candidate's speed, where moving there would measure it.
  static double what_trying_tells(const Candidate& candidate, const Situation& situation) {
    return has_own_speed(candidate, situation) && !candidate.is_layout_measured ? candidate.relative_deviation : 0;
  }

  // The gain at the worst phi of its interval; gains are monotonic in phi. Trying does not tell whether a batch was the
  // better one, so what is not known of phi counts against a move. Where both speeds were measured a difference within
  // their errors is none.
  static double cautious_gain(const Candidate& candidate, const GoodputRanking& ranking, const Situation& situation) {
    const GoodputRanking::Gains& gains = ranking.gains_of(candidate);
    const double gain = std::log1p(std::min({gains.at_value, gains.at_low, gains.at_high}));
    if (!has_own_speed(candidate, situation) || !candidate.is_layout_measured) return gain;
    return gain - std::hypot(candidate.relative_deviation, ranking.current().relative_deviation);
  }

  double seconds_saved(const Candidate& candidate, const GoodputRanking& ranking, const Situation& situation,
                       double pause) const {
    const MoveProspect move{.gain = cautious_gain(candidate, ranking, situation),
                            .deviation = what_trying_tells(candidate, situation),
                            .pause_seconds = pause,
                            .trial_seconds = steps_of_a_trial * candidate.step_seconds,
                            .price_seconds = price(candidate, situation)};
    constexpr double hopeless = 4;  // deviations: the rest of the formula is not worth its time
    if (move.gain < -hopeless * move.deviation) return -move.price_seconds;
    return expected_seconds_saved(move, horizon(situation));
  }

  double price(const Candidate& candidate, const Situation& situation) const {
    const double of_relayouts = price_of_relayouts(candidate, situation);
    if (candidate.configuration.global_batch == situation.current.global_batch) return of_relayouts;
    const double of_batch = steps_of_a_batch_change * candidate.step_seconds;
    return of_relayouts + (turns_back(candidate, situation) ? of_batch * price_factor_of_turning(situation) : of_batch);
  }

  // The seconds that a move has to save for the re-layouts that it may take out of those that are left. None where
  // nobody knows how long the run is: logs that do not say it.
  double price_of_relayouts(const Candidate& candidate, const Situation& situation) const {
    const int64_t relayouts = relayouts_to(candidate, situation);
    if (relayouts == 0 || !std::isfinite(situation.latest.seconds_left)) return 0;
    const auto share = static_cast<double>(relayouts) / static_cast<double>(std::max(relayouts, contract_.left()));
    return share_to_save_by_relayouts * share * std::max(0.0, situation.latest.seconds_left);
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
    const double pause = pause_of(candidate, situation);
    const double due = price_of_relayouts(candidate, situation);
    const char* const for_what = relayouts_to(candidate, situation) > 1 ? " that a re-layout and one back have to save"
                                                                        : " that the re-layout has to save";
    return concat(pause > 0 ? ", after a pause of " + format_duration(pause) : "",
                  due > 0 ? concat(", beyond the ", format_duration(due), for_what) : "",
                  turns_back(candidate, situation)
                      ? concat(", after ", counted(turns_, "turn"), " of the batch in short order")
                      : "");
  }

  // Explains why the candidate's batch is not for a run that is to spare tokens; empty where it is.
  std::optional<std::string> waste(const Candidate& candidate, const GoodputRanking& ranking) const {
    const double least = ranking.least_efficiency_of(candidate);
    if (!spares_tokens(config_) || least >= config_.adapt.least_efficiency) return std::nullopt;
    return concat("a sample in a batch of ", candidate.configuration.global_batch, " may be worth ",
                  format_number("%.0f %%", 100 * least), " of one in ", config_.train.global_batch,
                  ", and the run is to spare tokens (adapt.objective, adapt.least_efficiency)");
  }

  // The number of re-layouts that a move to the candidate may take: a try may need another one back.
  static int64_t relayouts_to(const Candidate& candidate, const Situation& situation) {
    if (!is_relayout(candidate, situation)) return 0;
    return what_trying_tells(candidate, situation) > 0 ? 2 : 1;
  }

  // Tells of what holds for thousands of candidates at once and without their reasons, which take time to write,
  // whether it stands in the way of this one: frozen layouts, or a batch that is held.
  bool is_ruled_out(const Candidate& candidate, const Situation& situation) const {
    return (is_relayout(candidate, situation) && !contract_.allows(relayouts_to(candidate, situation))) ||
           (situation.holds_batch && candidate.configuration.global_batch != situation.current.global_batch);
  }

  // Explains why the candidate is a re-layout too many; empty where it is not.
  std::optional<std::string> end_of_relayouts(const Candidate& candidate, const Situation& situation) const {
    if (!is_relayout(candidate, situation)) return std::nullopt;
    return contract_.why_too_many(relayouts_to(candidate, situation));
  }

  // Explains why the candidate must not be moved to now, whatever time it would save; empty where it may.
  std::optional<std::string> prohibition(const Candidate& candidate, const GoodputRanking& ranking,
                                         const NoiseBelief& noise, const Situation& situation) const {
    if (const std::optional<std::string> why = dwell(candidate, situation)) return why;
    if (const std::optional<std::string> why = waste(candidate, ranking)) return why;
    if (const std::optional<std::string> why = end_of_relayouts(candidate, situation)) return why;
    const GoodputRanking::Gains& gains = ranking.gains_of(candidate);
    const double floor =
        is_relayout(candidate, situation) ? config_.adapt.relayout_threshold : config_.adapt.batch_threshold;
    if (floor > 0 && gains.at_value < floor) {
      return concat("its gain of ", percent(gains.at_value), " is less than ", percent(floor));
    }
    // A lower bound alone leaves every phi above it possible: unless the number of updates bounds the critical batch, a
    // larger batch may be wanted, never a smaller one.
    const bool is_bounded = noise.is_bounded() || config_.noise_scale.critical_updates > 0;
    if (!is_bounded && candidate.configuration.global_batch < situation.current.global_batch) {
      return concat("its batch is smaller, and there is no upper bound yet: ", describe(noise));
    }
    if (what_trying_tells(candidate, situation) == 0 && (gains.at_low <= 0 || gains.at_high <= 0)) {
      return concat("its gain of ", percent(gains.at_value),
                    " does not hold over the noise scale's interval: ", over_interval(gains), "; ", describe(noise));
    }
    return std::nullopt;
  }

  // Explains why the candidate is not moved to: it must not be, or does not pay. Empty where it would.
  std::optional<std::string> objection(const Candidate& candidate, const GoodputRanking& ranking,
                                       const NoiseBelief& noise, const Situation& situation) const {
    if (const std::optional<std::string> why = prohibition(candidate, ranking, noise, situation)) return why;
    const double pause = pause_of(candidate, situation);
    if (const std::optional<std::string> why = dwell_of_a_try(candidate, situation, pause)) return why;
    if (seconds_saved(candidate, ranking, situation, pause) > 0) return std::nullopt;
    return concat("its gain of ", percent(ranking.gains_of(candidate).at_value), " does not pay within ",
                  format_duration(horizon(situation)), what_it_costs(candidate, situation));
  }

  // Explains how long it is until this layout may be tried; empty where it may. A try waits for some of its pauses, so
  // that they take a small share of the time even where each is followed by one back; to go back waits for none.
  std::optional<std::string> dwell_of_a_try(const Candidate& candidate, const Situation& situation,
                                            double pause) const {
    const double due = config_.adapt.dwell_pauses * pause;
    if (what_trying_tells(candidate, situation) == 0 || situation.seconds_since_switch >= due) return std::nullopt;
    return concat(format_duration(situation.seconds_since_switch), " of ", format_duration(due),
                  " since the last switch (adapt.dwell_pauses)");
  }

  // Explains why no move at all may follow the latest switch yet; empty where one may.
  static std::optional<std::string> dwell_of_any(const Situation& situation) {
    const int64_t steps = situation.samples_since_switch / situation.current.global_batch;
    if (steps >= least_steps) return std::nullopt;
    return concat(steps, " of ", least_steps, " steps since the last switch");
  }

  // Explains what has to pass before such a move, since the switches before it; empty where it has. A change of the
  // batch waits until the noise scale has been seen in the one before: no longer than its averages reach back at most,
  // which is a share of the samples so far, and so of the run.
  std::optional<std::string> dwell(const Candidate& candidate, const Situation& situation) const {
    const int64_t batch = situation.current.global_batch;
    if (std::optional<std::string> why = dwell_of_any(situation)) return why;
    if (candidate.configuration.global_batch == batch) return std::nullopt;
    if (situation.holds_batch) return why_batch_is_held(*situation.latest.phase);
    if (std::optional<std::string> why =
            contract_.why_forbidden(candidate.configuration.global_batch, situation.latest.consumed_samples)) {
      return why;
    }
    const int64_t samples = situation.latest.consumed_samples - batch_switched_at_;
    const auto memory =
        static_cast<int64_t>(NoiseWindow().largest_share * static_cast<double>(situation.latest.consumed_samples));
    const int64_t due = std::min(config_.adapt.dwell_samples, memory);
    if (samples < due) {
      return concat(samples, " of ", due, " samples since the last change of the batch (",
                    due < config_.adapt.dwell_samples ? "a quarter of the run so far" : "adapt.dwell_samples", ")");
    }
    if (samples / batch < config_.adapt.dwell_steps &&
        !batch_seen_at_.has_passed(NoiseWindow().largest_share, situation.latest.share_done)) {
      return concat(samples / batch, " of ", config_.adapt.dwell_steps,
                    " steps since the last change of the batch (adapt.dwell_steps)");
    }
    return std::nullopt;
  }

  // Finds the fastest candidate of the batch before the one that breaks the contract: in the current layout, or where
  // that cannot have this batch, in any other that the re-layouts left allow. Null where the batch has to stay.
  const Candidate* way_back(const AdaptContract::Breach& breach, const Situation& situation) const {
    if (situation.holds_batch) return nullptr;
    const auto fastest = [&](const CandidateFilter& allowed) {
      return fastest_near(situation, static_cast<double>(breach.batch_before), [&](const Candidate& candidate) {
        return candidate.configuration.global_batch == breach.batch_before && allowed(candidate);
      });
    };
    if (const Candidate* const here = fastest(layout_is(situation.current.strategy))) return here;
    return fastest([&](const Candidate& candidate) { return !is_ruled_out(candidate, situation); });
  }

  // Finds the candidate of the highest Goodput in this layout, where the current batch wastes tokens: the noise scale
  // has fallen since it was chosen, or somebody forced it. Null where it does not, or where a switch has to wait.
  const Candidate* way_out_of_waste(const GoodputRanking& ranking, const Situation& situation) const {
    if (!waste(ranking.current(), ranking)) return nullptr;
    const Candidate* best = nullptr;
    for (const Candidate& candidate : situation.candidates) {
      if (is_relayout(candidate, situation) || waste(candidate, ranking) || dwell(candidate, situation)) continue;
      if (best == nullptr || ranking.gains_of(candidate).at_value > ranking.gains_of(*best).at_value) {
        best = &candidate;
      }
    }
    return best;
  }

  // Finds the fastest candidate of the next larger batch, where the current one shows no noise scale and never will.
  std::optional<Configuration> way_out_of_blindness(const GoodputRanking& ranking, const Situation& situation) const {
    if (truth_ || situation.current.global_batch > 1 || situation.latest.noise_scale_low || situation.holds_batch) {
      return std::nullopt;
    }
    const Candidate* const best = fastest_near(situation, 1, [&](const Candidate& candidate) {
      return candidate.configuration.global_batch > 1 && !is_relayout(candidate, situation) &&
             !waste(candidate, ranking);
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
    const std::optional<std::string> why = objection(candidate, ranking, noise, situation);
    choice.reason =
        concat("holds: best is ", to_string(best), "; ", why.value_or("others would save more without their pauses"));
  }

  JobConfig config_;
  std::optional<NoiseTrace> truth_;
  std::optional<Configuration> last_;  // configuration at the decision before
  int direction_ = 0;                  // sign of the latest change of batch
  int64_t batch_switched_at_ = 0;      // in consumed samples
  RunMark batch_seen_at_;              // the first decision in this batch
  int turns_ = 0;                      // turns of the batch in a row, each soon after the one before
  AdaptContract contract_;
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

std::unique_ptr<Policy> make_goodput_policy(const JobConfig& config, std::optional<NoiseTrace> truth) {
  return std::make_unique<GoodputPolicy>(config, std::move(truth));
}

}  // namespace copus
