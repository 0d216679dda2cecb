// Baselines whose batches follow a schedule: the batch depends on the progress of the run and on no measurement. Each
// policy asks for a decision exactly at the step at which its batch changes, however soon after the previous one.
#include <algorithm>
#include <cmath>
#include <string>

#include "copus/base/error.h"
#include "copus/base/text/units.h"
#include "copus/config/step_schedule.h"
#include "copus/orchestrator/learning_rate/learning_rate.h"
#include "copus/orchestrator/policies/policies.h"

namespace copus {

namespace {

bool any_layout(const Candidate&) { return true; }

// Base class of schedules that depend on the progress of the run, as the learning rate's schedule counts it.
class ProgressPolicy : public BaselinePolicy {
 public:
  explicit ProgressPolicy(const JobConfig& config)
      : BaselinePolicy(config), learning_rate_(config.optimizer, config.train) {}

 protected:
  const LearningRate& learning_rate() const { return learning_rate_; }

  RunProgress progress(const Observation& observation) const {
    return {observation.consumed_samples * config().train.sequence_length, observation.elapsed_seconds};
  }

  // Chooses the fastest layout for a batch, so that a baseline does not lose only because its layout suits an earlier
  // batch. A run that already has this batch keeps its layout.
  static Choice to_scheduled_batch(const Situation& situation, double batch, const std::string& why) {
    const Configuration& current = situation.current;
    const int64_t nearest = fastest_near(situation, batch, any_layout)->configuration.global_batch;
    return to_batch(situation, batch, nearest == current.global_batch ? layout_is(current.strategy) : any_layout, why);
  }

 private:
  LearningRate learning_rate_;
};

// Follows a schedule of batches by consumed samples exactly (Megatron-LM's --step-batch-size-schedule): every step has
// the batch that the schedule names for the step's first sample. Layout and micro-batch stay. A switch of batch takes
// effect only after the next step, so the policy decides one step ahead.
class StepsPolicy : public BaselinePolicy {
 public:
  explicit StepsPolicy(const JobConfig& config)
      : BaselinePolicy(config), schedule_(parse_step_schedule(config.adapt.schedule, config.train.sequence_length)) {}

  // Returns whether a decision is due: the schedule's batch has changed, or a command or a change of ranks has changed
  // the run's configuration.
  bool is_due(const Observation& observation, const Configuration& current) const override {
    return batch_after_next(observation, current) != asked_for_ || current != asked_in_;
  }

  void visit_state(StateValues& values) override { values(asked_for_, asked_in_); }

 private:
  // The batch of the step after the next one.
  int64_t batch_after_next(const Observation& latest, const Configuration& current) const {
    return scheduled_batch(schedule_, latest.consumed_samples + current.global_batch);
  }

  Choice decide(const Situation& situation) override {
    asked_for_ = batch_after_next(situation.latest, situation.current);
    asked_in_ = situation.current;
    const std::string why =
        concat("adapt.schedule has batch ", asked_for_, " at ",
               situation.latest.consumed_samples + situation.current.global_batch, " consumed samples");
    if (asked_for_ == situation.current.global_batch) return hold(why);
    Configuration target = situation.current;
    target.global_batch = asked_for_;
    return move(target, why);
  }

  StepSchedule schedule_;
  int64_t asked_for_ = 0;
  Configuration asked_in_;
};

// Trains in the first batch up to a given fraction of the run, then switches once to a larger batch (late switching,
// Wang et al. 2026, arXiv 2602.14208). After the switch, the loss soon equals the loss of a run that always had the
// larger batch, although fewer samples were consumed. The paper derives the time of the switch and the larger batch
// from fitted laws; here both are settings. The paper keeps the learning rate when the batch switches. Here the rate
// follows the batch as [optimizer] says; batch_scaling "none" keeps it.
class LateSwitchPolicy : public ProgressPolicy {
 public:
  using ProgressPolicy::ProgressPolicy;

  bool is_due(const Observation& observation, const Configuration& /*current*/) const override {
    return is_late(observation) != was_late_;
  }

  void visit_state(StateValues& values) override { values(was_late_); }

 private:
  bool is_late(const Observation& observation) const {
    return learning_rate().share(progress(observation)) >= config().adapt.late_switch_share;
  }

  Choice decide(const Situation& situation) override {
    was_late_ = is_late(situation.latest);
    const int64_t batch = was_late_ ? config().adapt.late_switch_batch : config().train.global_batch;
    const double done = 100 * learning_rate().share(progress(situation.latest));
    return to_scheduled_batch(
        situation, static_cast<double>(batch),
        concat(format_number("%.3g", done), " % of the run is done, and adapt.late_switch_share is ",
               format_number("%.3g", 100 * config().adapt.late_switch_share), " %: batch ", batch));
  }

  bool was_late_ = false;
};

// Grows the batch when the schedule would lower the learning rate (Seesaw, Meterez et al. 2025, arXiv 2510.14717): each
// time the schedule has fallen to 1/a, the rate falls only to 1/sqrt(a), and the batch grows by a factor of a (a cut).
//
// The paper states this rule for any a, with a constant rate between two cuts. Here a = 2, so each batch is the first
// batch times a power of two. The rate is r(B_0) lr 2^-k sqrt(B / B_0), with B_0 the first batch, r(B_0) the factor
// that [optimizer] gives for B_0, and k the number of cuts. For B = B_0 2^k this is 2^(-k/2) of the first rate, as in
// the paper. Two cases are not in the paper. First, if B_0 2^k is not among the candidates, the run uses a different
// batch B, and the square root adjusts the rate to B. Second, in the largest batch, which cannot grow, the rate falls
// again in proportion to the schedule. The warm-up does not count as a fall.
class SeesawPolicy : public ProgressPolicy {
 public:
  explicit SeesawPolicy(const JobConfig& config)
      : ProgressPolicy(config),
        first_batch_(static_cast<double>(config.train.global_batch)),
        first_factor_(initial_rate_factor(config, config.train.global_batch)) {}

  void observe(const Observation& observation, const Configuration&) override {
    batch_ = observation.consumed_samples - consumed_samples_;
    consumed_samples_ = observation.consumed_samples;
  }

  // Returns whether a decision is due. It is due at a cut. It is also due before each update at which the schedule
  // would lower the rate, because between cuts the rate should stay constant.
  bool is_due(const Observation& observation, const Configuration& /*current*/) const override {
    if (cuts_at(fall_at(progress(observation))) != asked_for_) return true;
    const double next = fall_at(progress_after(observation, batch_, 1));
    return !follows_schedule_ && std::abs(next / stated_at_ - 1) > largest_drift;
  }

  void visit_state(StateValues& values) override {
    values(batch_, consumed_samples_, stated_at_, asked_for_, made_, going_to_, going_to_cuts_, follows_schedule_);
  }

 private:
  static constexpr double largest_drift = 0.01;
  static constexpr double least_fall = 0x1p-62;  // a schedule may end at a rate of 0

  // The schedule's rate relative to its peak; 1 during the warm-up.
  double fall_at(const RunProgress& progress) const {
    if (learning_rate().phase(progress) == SchedulePhase::warm_up) return 1;
    return std::clamp(learning_rate().at(progress) / config().optimizer.lr, least_fall, 1.0);
  }

  static int64_t cuts_at(double fall) { return static_cast<int64_t>(std::floor(-std::log2(fall))); }

  // Progress at the update that is `samples` and `steps` after the latest one; its seconds are an estimate.
  RunProgress progress_after(const Observation& latest, int64_t samples, int64_t steps) const {
    RunProgress ahead = progress(latest);
    ahead.tokens += samples * config().train.sequence_length;
    ahead.seconds += static_cast<double>(steps) * latest.step_seconds;
    return ahead;
  }

  static bool is_largest(const Situation& situation, const Configuration& configuration) {
    return std::none_of(situation.candidates.begin(), situation.candidates.end(), [&](const Candidate& candidate) {
      return candidate.configuration.global_batch > configuration.global_batch;
    });
  }

  // The factor on the schedule's rate in a configuration after `cuts` cuts, when the schedule has fallen to `fall`.
  double factor_in(const Situation& situation, const Configuration& configuration, int64_t cuts, double fall) const {
    const auto batch = static_cast<double>(configuration.global_batch);
    const double factor = first_factor_ * std::sqrt(batch / first_batch_);
    if (is_largest(situation, configuration)) return factor;
    return factor * std::exp2(-static_cast<double>(cuts)) / fall;
  }

  // Chooses a batch and factors on the rate. Each factor is for the first update that uses it: the next update for the
  // current configuration, and the update after that for the target of a move.
  Choice decide(const Situation& situation) override {
    const Observation& latest = situation.latest;
    const double fall = fall_at(progress(latest));
    asked_for_ = cuts_at(fall);
    const double batch = first_batch_ * std::exp2(static_cast<double>(asked_for_));
    Choice choice =
        to_scheduled_batch(situation, batch,
                           concat("the schedule has the learning rate at ", format_number("%.3g", 100 * fall),
                                  " % of its highest: batch ", format_number("%.0f", batch)));
    // Until the run moves, it has the rate of the previous cut, even if the next move is due by then.
    if (going_to_ == situation.current) made_ = going_to_cuts_;
    if (!choice.target) made_ = asked_for_;
    going_to_ = choice.target;
    going_to_cuts_ = asked_for_;
    follows_schedule_ = is_largest(situation, situation.current);
    const int64_t samples = situation.current.global_batch;
    stated_at_ = fall_at(progress_after(latest, samples, 1));
    choice.rate_factor = factor_in(situation, situation.current, made_, stated_at_);
    if (choice.target) {
      const double then = fall_at(progress_after(latest, samples + choice.target->global_batch, 2));
      choice.target_rate_factor = factor_in(situation, *choice.target, asked_for_, then);
    }
    return choice;
  }

  double first_batch_, first_factor_;
  int64_t batch_ = 0, consumed_samples_ = 0;  // of the latest step, and up to it
  double stated_at_ = 1;                      // fall of the schedule at the update that the latest factor is for
  int64_t asked_for_ = 0;                     // cuts at the latest decision
  int64_t made_ = 0;                          // cuts in the run's present rate
  std::optional<Configuration> going_to_;     // the latest decision's target, and the cuts in its rate
  int64_t going_to_cuts_ = 0;
  bool follows_schedule_ = false;  // whether the rate falls as the schedule does, in the largest batch
};

}  // namespace

std::unique_ptr<Policy> make_schedule_policy(const JobConfig& config) {
  switch (config.adapt.policy) {
    case PolicyKind::steps:
      return std::make_unique<StepsPolicy>(config);
    case PolicyKind::seesaw:
      return std::make_unique<SeesawPolicy>(config);
    case PolicyKind::late_switch:
      return std::make_unique<LateSwitchPolicy>(config);
    default:
      fail_check("a schedule of batches", __FILE__, __LINE__, std::string(to_string(config.adapt.policy)));
  }
}

}  // namespace copus
