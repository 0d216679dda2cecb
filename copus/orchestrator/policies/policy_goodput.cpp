// The policy of Copus. It moves the run to the configuration with the largest expected saving of time, less the cost of
// the move. The oracle is the same policy with the true noise scale.
#include <algorithm>
#include <cmath>
#include <set>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "copus/base/error.h"
#include "copus/base/text/units.h"
#include "copus/orchestrator/policies/adapt_contract.h"
#include "copus/orchestrator/policies/goodput_ranking.h"
#include "copus/orchestrator/policies/move_value.h"
#include "copus/orchestrator/policies/policies.h"
#include "copus/orchestrator/run_mark.h"
#include "copus/statistics/noise_scale.h"

namespace copus {

namespace {

// Smallest number of steps between two switches: two to warm up, and one that is measured. One measured step is enough
// to leave a layout that stalls.
constexpr int64_t least_steps = 3;

// A decision forecasts the pauses of at most this many strategies that were never measured, because planning one pause
// takes milliseconds with hundreds of ranks.
constexpr size_t most_forecasts = 4;

// The assumed cost of a change of the batch, in steps: for about 1 / (1 - beta2) = 20 steps the second moments still
// belong to the old batch. How much loss this costs has not been measured. The value hardly matters in simulated runs,
// in which a change costs no loss: with 0, 2 and 8 steps the times differed by at most 0.3 %.
constexpr double steps_of_a_batch_change = 2;

// The fraction of the remaining time that the last re-layout has to save. With n left, each has to save 1 / n^2 of it.
// adapt.most_relayouts limits the number of re-layouts, so a re-layout for a small gain early in a run is missing
// later. With this price the run takes a large gain at once, and a small gain only after the gain has lasted for some
// time. The price with six left was tuned on the chosen group of simulated runs, the square on later ones
// (docs/decisions/orchestrator.md).
constexpr double share_to_save_by_last_relayout = 0.018;

// Base of the price of a turn. A turn is a change of the batch in the opposite direction to the previous change. The
// noise scale phi depends on the learning rate (McCandlish et al. 2018, arXiv 1812.06162, and Gray et al. 2024, arXiv
// 2411.00999, disagree on the sign), and the learning rate depends on the batch. So a run could alternate between two
// batches forever, if in each batch the other batch looks better by more than any threshold. The price of a turn rises
// with every turn that follows soon after another, and falls with the time since. A candidate with a larger gain
// therefore waits less, and no turn is ruled out for good.
constexpr double price_of_a_turn = 4;  // times the price of the turn before
constexpr double quick_turn = 8;       // a turn within this many times patience() follows soon

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
    } else if (const Search found = most_saving(ranking, noise, situation); found.most.candidate != nullptr) {
      const Saving& most = found.most;
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
      explain_hold(choice, found.waiting.candidate, ranking, noise, situation);
    }
    return choice;
  }

  void visit_state(StateValues& values) override {
    values(last_, direction_, batch_switched_at_, batch_seen_at_, turns_, contract_);
  }

  void learn(const std::vector<MeasuredCriticalBatch>& critical_batches) override {
    config_.noise_scale.critical_batches = critical_batches;
  }

  NoiseBelief belief(const Observation& latest) const override {
    if (!truth_) return believed_noise(latest);
    const double phi = noise_at(*truth_, static_cast<double>(latest.consumed_samples));
    return {phi, phi, phi};
  }

 private:
  // The expected saving of a move to a candidate, or an upper bound on it.
  struct Saving {
    double seconds = 0;
    const Candidate* candidate = nullptr;
    bool is_exact = false;
  };

  // The result of a search for the candidate with the largest expected saving.
  struct Search {
    Saving most;     // without a candidate if it is best to stay
    Saving waiting;  // the best change in the current layout that only has to wait; counted from the end of its wait
  };

  // Finds the candidate with the largest expected saving. A re-layout also has to save more than any change in the
  // current layout whose speed is known, even one that still has to wait, counted from the end of its wait. Otherwise a
  // run that has just tried a bad batch would leave its layout, since it may not leave the batch yet. Candidates are
  // considered in descending order of their saving without a pause (ties in their own order), until no later candidate
  // can save more. A heap orders thousands of candidates by a cheap upper bound, and the exact saving is computed only
  // for candidates that reach the heap's top. Forecasting a pause takes milliseconds, so among strategies that were
  // never measured only the most promising ones get a forecast.
  Search most_saving(const GoodputRanking& ranking, const NoiseBelief& noise, const Situation& situation) const {
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
    Search search;
    std::set<ParallelStrategy> to_try;
    while (!without_pause.empty()) {
      std::pop_heap(without_pause.begin(), without_pause.end(), is_later);
      auto& [at_most, candidate, is_exact] = without_pause.back();
      if (at_most <= search.most.seconds) break;
      if (!is_exact) {
        at_most = seconds_saved(*candidate, ranking, situation, 0);
        is_exact = true;
        std::push_heap(without_pause.begin(), without_pause.end(), is_later);
        continue;
      }
      consider(*candidate, ranking, noise, situation, to_try, search);
      without_pause.pop_back();
    }
    return search;
  }

  // Replaces the best candidate so far by one that is allowed and saves more, its pause included. A change that only
  // has to wait is kept as search.waiting, and drops a re-layout that saves no more.
  void consider(const Candidate& candidate, const GoodputRanking& ranking, const NoiseBelief& noise,
                const Situation& situation, std::set<ParallelStrategy>& to_try, Search& search) const {
    if (only_has_to_wait(candidate, ranking, noise, situation)) {
      const double wait = dwell(candidate, situation)->steps * ranking.current().step_seconds;
      const double share = std::max(0.0, 1 - wait / horizon(situation));
      const Saving waiting{share * seconds_saved(candidate, ranking, situation, 0), &candidate, true};
      if (waiting.seconds > search.waiting.seconds) search.waiting = waiting;
      const bool is_beaten = search.most.seconds <= search.waiting.seconds;
      if (is_beaten && search.most.candidate != nullptr && is_relayout(*search.most.candidate, situation)) {
        search.most = {};
      }
    }
    if (prohibition(candidate, ranking, noise, situation)) return;
    if (is_relayout(candidate, situation) && !candidate.is_layout_measured) {
      const ParallelStrategy& strategy = candidate.configuration.strategy;
      if (to_try.size() == most_forecasts && !to_try.contains(strategy)) return;
      to_try.insert(strategy);
    }
    const double pause = pause_of(candidate, situation);
    if (dwell_of_a_try(candidate, situation, pause)) return;
    const double seconds = seconds_saved(candidate, ranking, situation, pause);
    if (is_relayout(candidate, situation) && seconds <= search.waiting.seconds) return;
    if (seconds > search.most.seconds) search.most = {seconds, &candidate, true};
  }

  // Returns an upper bound on seconds_saved without a pause. Computing the bound costs only a square root. It uses
  // log(1 + gain) <= gain, 1 - exp(-x) <= x, and E max(0, x) <= (sqrt(mean^2 + deviation^2) + mean) / 2 for any
  // distribution. The factor allows for rounding.
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

  // Counts turns of the batch, in both directions, whether the policy or a user made them. A switch before the first
  // decision may have changed the batch.
  void follow(const Situation& situation) {
    const int64_t switched_at = situation.latest.consumed_samples - situation.samples_since_switch;
    if (!last_ && switched_at > 0) batch_switched_at_ = switched_at;
    const int direction = last_ ? sign(situation.current.global_batch - last_->global_batch) : 0;
    if (direction != 0) {
      if (direction == -direction_) {
        const auto stayed = static_cast<double>(switched_at - *batch_switched_at_);
        turns_ = stayed < quick_turn * patience() ? turns_ + 1 : 0;
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

  // Number of samples after which one more turn costs no more than any other change of the batch.
  double patience() const {
    return static_cast<double>(config_.adapt.dwell_samples) * std::pow(price_of_a_turn, turns_);
  }

  static bool is_relayout(const Candidate& candidate, const Situation& situation) {
    return candidate.configuration.strategy != situation.current.strategy;
  }

  // Returns the seconds within which a move must save more than it costs: the smaller of the remaining and the elapsed
  // time of the run. The noise scale changes with the progress, so the candidate that is best now has been best for at
  // most the elapsed time.
  static double horizon(const Situation& situation) {
    return std::max(0.0, std::min(situation.latest.seconds_left, situation.latest.elapsed_seconds));
  }

  static double pause_of(const Candidate& candidate, const Situation& situation) {
    return is_relayout(candidate, situation) ? situation.pause_seconds(candidate.configuration.strategy) : 0;
  }

  // Whether a candidate differs from the current configuration in strategy or micro-batch, and therefore has a speed of
  // its own. That speed is known if it was measured in any batch.
  static bool has_own_speed(const Candidate& candidate, const Situation& situation) {
    return is_relayout(candidate, situation) || candidate.configuration.micro_batch != situation.current.micro_batch;
  }

  // The standard deviation of a candidate's speed that a trial would resolve; 0 if the speed is known.
  static double what_trying_tells(const Candidate& candidate, const Situation& situation) {
    return has_own_speed(candidate, situation) && !candidate.is_layout_measured ? candidate.relative_deviation : 0;
  }

  // Returns the logarithm of the gain at the least favourable phi of phi's interval. That is one end of the interval,
  // because the gain is monotonic in phi. The caution is needed because a trial does not show whether a batch is
  // better. If both speeds were measured, also subtracts the standard deviation of their ratio, so that a difference
  // within the errors of measurement is no gain.
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
    constexpr double hopeless = 4;  // in deviations; below that, the rest of the formula is negligible
    if (move.gain < -hopeless * move.deviation) return -move.price_seconds;
    return expected_seconds_saved(move, horizon(situation));
  }

  double price(const Candidate& candidate, const Situation& situation) const {
    const double of_relayouts = price_of_relayouts(candidate, situation);
    if (candidate.configuration.global_batch == situation.current.global_batch) return of_relayouts;
    const double of_batch = steps_of_a_batch_change * candidate.step_seconds;
    return of_relayouts + (turns_back(candidate, situation) ? of_batch * price_factor_of_turning(situation) : of_batch);
  }

  // Returns the seconds that a move has to save, as the price of the re-layouts that it may use up. Returns 0 if the
  // length of the run is unknown.
  double price_of_relayouts(const Candidate& candidate, const Situation& situation) const {
    const int64_t relayouts = relayouts_to(candidate, situation);
    if (relayouts == 0 || !std::isfinite(situation.latest.seconds_left)) return 0;
    const auto left = static_cast<double>(std::max(relayouts, contract_.left()));
    return share_to_save_by_last_relayout / (left * left) * static_cast<double>(relayouts) *
           std::max(0.0, situation.latest.seconds_left);
  }

  bool turns_back(const Candidate& candidate, const Situation& situation) const {
    const int direction = sign(candidate.configuration.global_batch - situation.current.global_batch);
    return turns_ > 0 && direction != 0 && direction == -direction_;
  }

  double price_factor_of_turning(const Situation& situation) const {
    const auto since = static_cast<double>(situation.latest.consumed_samples - *batch_switched_at_);
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

  // Explains why a run that is to spare tokens must not use the candidate's batch; empty if it may.
  std::optional<std::string> waste(const Candidate& candidate, const GoodputRanking& ranking) const {
    const double least = ranking.least_efficiency_of(candidate);
    if (!spares_tokens(config_) || least >= config_.adapt.least_efficiency) return std::nullopt;
    return concat("a sample in a batch of ", candidate.configuration.global_batch, " may be worth ",
                  format_number("%.0f %%", 100 * least), " of one in ", config_.train.global_batch,
                  ", and the run is to spare tokens (adapt.objective, adapt.least_efficiency)");
  }

  // The number of re-layouts that a move to the candidate may use up: a trial may need a second one to go back.
  static int64_t relayouts_to(const Candidate& candidate, const Situation& situation) {
    if (!is_relayout(candidate, situation)) return 0;
    return what_trying_tells(candidate, situation) > 0 ? 2 : 1;
  }

  // Returns whether a candidate is ruled out because too few re-layouts are left for it, or because the batch must not
  // change (holds_batch). These reasons apply to thousands of candidates at once, and writing out the reason for each
  // would take too long.
  bool is_ruled_out(const Candidate& candidate, const Situation& situation) const {
    return (is_relayout(candidate, situation) && !contract_.allows(relayouts_to(candidate, situation))) ||
           (situation.holds_batch && candidate.configuration.global_batch != situation.current.global_batch);
  }

  // Explains why too few re-layouts are left for a move to the candidate; empty if enough are.
  std::optional<std::string> end_of_relayouts(const Candidate& candidate, const Situation& situation) const {
    if (!is_relayout(candidate, situation)) return std::nullopt;
    return contract_.why_too_many(relayouts_to(candidate, situation));
  }

  // Explains why the run must not move to the candidate now, whatever time that would save; empty if it may.
  std::optional<std::string> prohibition(const Candidate& candidate, const GoodputRanking& ranking,
                                         const NoiseBelief& noise, const Situation& situation) const {
    if (std::optional<std::string> why = dwell_of_any(situation)) return why;
    if (std::optional<std::string> why = ban_of_batch(candidate, situation)) return why;
    if (const std::optional<Dwell> rest = dwell(candidate, situation)) return rest->reason;
    return lasting_prohibition(candidate, ranking, noise, situation);
  }

  // Whether the run already knows the speed of this change in its layout, and may make it after a dwell.
  bool only_has_to_wait(const Candidate& candidate, const GoodputRanking& ranking, const NoiseBelief& noise,
                        const Situation& situation) const {
    return !is_relayout(candidate, situation) && what_trying_tells(candidate, situation) == 0 &&
           dwell(candidate, situation) && !ban_of_batch(candidate, situation) &&
           !lasting_prohibition(candidate, ranking, noise, situation);
  }

  // Explains why the batch must not change to the candidate's; empty if it may.
  std::optional<std::string> ban_of_batch(const Candidate& candidate, const Situation& situation) const {
    if (candidate.configuration.global_batch == situation.current.global_batch) return std::nullopt;
    if (situation.holds_batch) return why_batch_is_held(*situation.latest.phase);
    return contract_.why_forbidden(candidate.configuration.global_batch, situation.latest.consumed_samples);
  }

  // Explains why the run must not move to the candidate, even if no dwell forbids it; empty if it may.
  std::optional<std::string> lasting_prohibition(const Candidate& candidate, const GoodputRanking& ranking,
                                                 const NoiseBelief& noise, const Situation& situation) const {
    if (const std::optional<std::string> why = waste(candidate, ranking)) return why;
    if (const std::optional<std::string> why = end_of_relayouts(candidate, situation)) return why;
    const GoodputRanking::Gains& gains = ranking.gains_of(candidate);
    const double floor =
        is_relayout(candidate, situation) ? config_.adapt.relayout_threshold : config_.adapt.batch_threshold;
    if (floor > 0 && gains.at_value < floor) {
      return concat("its gain of ", percent(gains.at_value), " is less than ", percent(floor));
    }
    // Without an upper bound, phi may have any value above its lower bound. So the run may move to a larger batch, but
    // not to a smaller one. With noise_scale.critical_updates the number of updates bounds the critical batch, and a
    // smaller batch is allowed too.
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

  // Explains why the run does not move to the candidate: the move is forbidden, or it saves no time. Empty if it would
  // move.
  std::optional<std::string> objection(const Candidate& candidate, const GoodputRanking& ranking,
                                       const NoiseBelief& noise, const Situation& situation) const {
    if (const std::optional<std::string> why = prohibition(candidate, ranking, noise, situation)) return why;
    const double pause = pause_of(candidate, situation);
    if (const std::optional<std::string> why = dwell_of_a_try(candidate, situation, pause)) return why;
    if (seconds_saved(candidate, ranking, situation, pause) > 0) return std::nullopt;
    return concat("its gain of ", percent(ranking.gains_of(candidate).at_value), " does not pay within ",
                  format_duration(horizon(situation)), what_it_costs(candidate, situation));
  }

  // Explains how long a trial of this layout still has to wait; empty if it need not wait. A trial waits for
  // adapt.dwell_pauses times its pause, so that pauses take a small fraction of the time even if each trial is followed
  // by a move back. A move back does not wait.
  std::optional<std::string> dwell_of_a_try(const Candidate& candidate, const Situation& situation,
                                            double pause) const {
    const double due = config_.adapt.dwell_pauses * pause;
    if (what_trying_tells(candidate, situation) == 0 || situation.seconds_since_switch >= due) return std::nullopt;
    return concat(format_duration(situation.seconds_since_switch), " of ", format_duration(due),
                  " since the last switch (adapt.dwell_pauses)");
  }

  // Explains why it is too early for any move after the latest switch; empty if it is not.
  static std::optional<std::string> dwell_of_any(const Situation& situation) {
    const int64_t steps = situation.samples_since_switch / situation.current.global_batch;
    if (steps >= least_steps) return std::nullopt;
    return concat(steps, " of ", least_steps, " steps since the last switch");
  }

  // The rest of a dwell, at most: its reason and its length.
  struct Dwell {
    std::string reason;
    double steps = 0;  // in the current configuration
  };

  // Returns how long the batch still has to wait after earlier changes; empty if it need not wait. Where the batch has
  // changed before, another change waits until the noise scale has been measured in the current batch. It waits at most
  // for the window of the noise scale's averages, which is a fraction of the samples so far. In a run's first batch the
  // averages contain no other batch, and a decision already takes the noise scale's interval into account.
  std::optional<Dwell> dwell(const Candidate& candidate, const Situation& situation) const {
    const int64_t batch = situation.current.global_batch;
    if (candidate.configuration.global_batch == batch || !batch_switched_at_) return std::nullopt;
    const int64_t samples = situation.latest.consumed_samples - *batch_switched_at_;
    const auto memory =
        static_cast<int64_t>(NoiseWindow().largest_share * static_cast<double>(situation.latest.consumed_samples));
    const int64_t due = std::min(config_.adapt.dwell_samples, memory);
    const int64_t steps = samples / batch;
    const bool has_passed = batch_seen_at_.has_passed(NoiseWindow().largest_share, situation.latest.share_done);
    const int64_t steps_due = has_passed ? 0 : config_.adapt.dwell_steps;
    if (samples >= due && steps >= steps_due) return std::nullopt;
    const std::string why =
        samples < due
            ? concat(samples, " of ", due, " samples since the last change of the batch (",
                     due < config_.adapt.dwell_samples ? "a quarter of the run so far" : "adapt.dwell_samples", ")")
            : concat(steps, " of ", steps_due, " steps since the last change of the batch (adapt.dwell_steps)");
    const double by_samples = static_cast<double>(due - samples) / static_cast<double>(batch);
    return Dwell{why, std::max(by_samples, static_cast<double>(steps_due - steps))};
  }

  // Returns the fastest candidate with the batch that the run had before the breach of the contract. Candidates in the
  // current layout are preferred; if none of them has this batch, any layout that the remaining re-layouts allow is
  // possible. Null if no candidate is possible or the batch must not change.
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

  // If the current batch wastes tokens, considers the candidates of this layout whose batch wastes no tokens, and
  // returns the one with the highest Goodput. A batch may waste tokens because the noise scale has fallen, or because a
  // user has forced a large batch. Null if the current batch wastes no tokens, or if the switch has to wait.
  const Candidate* way_out_of_waste(const GoodputRanking& ranking, const Situation& situation) const {
    if (!waste(ranking.current(), ranking) || dwell_of_any(situation)) return nullptr;
    const Candidate* best = nullptr;
    for (const Candidate& candidate : situation.candidates) {
      if (is_relayout(candidate, situation) || waste(candidate, ranking)) continue;
      if (ban_of_batch(candidate, situation) || dwell(candidate, situation)) continue;
      if (best == nullptr || ranking.gains_of(candidate).at_value > ranking.gains_of(*best).at_value) {
        best = &candidate;
      }
    }
    return best;
  }

  // If the current batch can never show a noise scale, finds the fastest candidate with the next larger batch.
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

  // Explains why the run does not move to the best candidate.
  void explain_hold(Choice& choice, const Candidate* waiting, const GoodputRanking& ranking, const NoiseBelief& noise,
                    const Situation& situation) const {
    const Configuration& best = choice.best.front().configuration;
    if (best == situation.current) {
      choice.reason = concat("holds: nothing has a higher Goodput; ", describe(noise));
      return;
    }
    choice.predicted_gain = ranking.gain_of(best);
    const Candidate& candidate = *find_candidate(situation.candidates, best);
    const std::optional<std::string> why = objection(candidate, ranking, noise, situation);
    const std::string otherwise =
        waiting != nullptr
            ? concat(to_string(waiting->configuration),
                     " may save more, and has to wait: ", prohibition(*waiting, ranking, noise, situation).value_or(""))
            : "others would save more without their pauses";
    choice.reason = concat("holds: best is ", to_string(best), "; ", why.value_or(otherwise));
  }

  JobConfig config_;
  std::optional<NoiseTrace> truth_;
  std::optional<Configuration> last_;         // configuration at the decision before
  int direction_ = 0;                         // sign of the latest change of batch
  std::optional<int64_t> batch_switched_at_;  // in consumed samples; empty in the run's first batch
  RunMark batch_seen_at_;                     // the first decision in this batch
  int turns_ = 0;                             // turns of the batch in a row, each soon after the one before
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
