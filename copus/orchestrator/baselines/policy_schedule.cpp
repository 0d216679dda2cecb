// Policies whose batches are a schedule: they follow from how far the run has come, and from nothing that is measured.
// Copus is compared with them. Each asks to decide at the very step at which its batch changes, and keeps no dwell.
#include <algorithm>
#include <cmath>
#include <string>

#include "copus/base/error.h"
#include "copus/base/units.h"
#include "copus/config/step_schedule.h"
#include "copus/orchestrator/learning_rate.h"
#include "copus/orchestrator/policies.h"

namespace copus {

namespace {

bool any_layout(const Candidate&) { return true; }

// The base of schedules that go by how far the learning rate's schedule, and with it the run, has come.
class ProgressPolicy : public BaselinePolicy {
 public:
  explicit ProgressPolicy(const JobConfig& config)
      : BaselinePolicy(config), learning_rate_(config.optimizer, config.train) {}

 protected:
  const LearningRate& learning_rate() const { return learning_rate_; }

  RunProgress progress(const Observation& observation) const {
    return {observation.consumed_samples * config().train.sequence_length, observation.elapsed_seconds};
  }

  // Chooses a batch in the layout that is fastest there, and leaves a run that is in this batch as it is: such a
  // schedule says nothing of layouts, and as a rival it shall not be slow for staying in one that its batch has
  // outgrown.
  static Choice to_scheduled_batch(const Situation& situation, double batch, const std::string& why) {
    const Configuration& current = situation.current;
    const int64_t nearest = fastest_near(situation, batch, any_layout)->configuration.global_batch;
    return to_batch(situation, batch, nearest == current.global_batch ? layout_is(current.strategy) : any_layout, why);
  }

 private:
  LearningRate learning_rate_;
};

// A schedule of batches by consumed samples (Megatron-LM's --step-batch-size-schedule), carried out exactly: every step
// has the batch that the schedule has where the step begins. Layout and micro-batch stay. A switch of batch that is
// decided after a step commits after the next one, so the policy looks one step ahead.
class StepsPolicy : public BaselinePolicy {
 public:
  explicit StepsPolicy(const JobConfig& config)
      : BaselinePolicy(config), schedule_(parse_step_schedule(config.adapt.schedule, config.train.sequence_length)) {}

  // Asks to decide where the schedule's batch or, by a command or for want of ranks, that of the run has changed.
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

// Trains in the first batch until a share of the run is done, and switches once, to a larger one (late switching, Wang
// et al. 2026, arXiv 2602.14208): a loss that has learned in small batches catches up with that of large ones soon
// after the switch, having consumed less. From the paper is the form of the schedule; when it switches and where to are
// settings, which there follow from fitted laws. The paper's runs switch the batch at a learning rate that stays. Here
// the rate follows the batch as [optimizer] says; batch_scaling "none" leaves it as it was.
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

// Grows the batch where the schedule would lower the learning rate (Seesaw, Meterez et al. 2025, arXiv 2510.14717):
// each time that the schedule has fallen by 1/a, the rate is multiplied by 1/sqrt(a) instead, and the batch by a.
//
// From the paper is this rule, which it states for any a, and a rate that stays between two such cuts. Here a = 2,
// which keeps batches powers of two times the first. The rate is
//   r(B_0) lr 2^-k sqrt(B / B_0),
// with B_0 the first batch, r(B_0) its factor by [optimizer] and k the number of cuts: 2^(-k/2) of the first rate where
// B = B_0 2^k, as in the paper. Not from the paper: where B is another batch, since that one is no candidate, the root
// keeps rate and batch in the same proportion; and in the largest batch, which cannot grow, the rate falls again as the
// schedule does, from where it was. The warm-up counts as no fall.
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

  // Asks to decide at a cut, and where the schedule will have fallen so far at the next update that a rate that should
  // stay would not.
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

  // What the schedule has made of its highest rate; 1 during the warm-up.
  double fall_at(const RunProgress& progress) const {
    if (learning_rate().phase(progress) == SchedulePhase::warm_up) return 1;
    return std::clamp(learning_rate().at(progress) / config().optimizer.lr, least_fall, 1.0);
  }

  static int64_t cuts_at(double fall) { return static_cast<int64_t>(std::floor(-std::log2(fall))); }

  // Progress of the update that follows the latest one by so many samples and, as far as is known, seconds.
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

  // The factor on the schedule's rate, where that has fallen to `fall`, in a batch after so many cuts.
  double factor_in(const Situation& situation, const Configuration& configuration, int64_t cuts, double fall) const {
    const auto batch = static_cast<double>(configuration.global_batch);
    const double factor = first_factor_ * std::sqrt(batch / first_batch_);
    if (is_largest(situation, configuration)) return factor;
    return factor * std::exp2(-static_cast<double>(cuts)) / fall;
  }

  // The rates are those of the first updates for which the factors count: the next one, and the one behind it where the
  // run moves.
  Choice decide(const Situation& situation) override {
    const Observation& latest = situation.latest;
    const double fall = fall_at(progress(latest));
    asked_for_ = cuts_at(fall);
    const double batch = first_batch_ * std::exp2(static_cast<double>(asked_for_));
    Choice choice =
        to_scheduled_batch(situation, batch,
                           concat("the schedule has the learning rate at ", format_number("%.3g", 100 * fall),
                                  " % of its highest: batch ", format_number("%.0f", batch)));
    // Until it moves the run has the rate of the cut before, also where the next move is already due when it has.
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
  int64_t batch_ = 0, consumed_samples_ = 0;  // of the latest step, and with it
  double stated_at_ = 1;   // what the schedule comes to at the update for which the latest factor was made
  int64_t asked_for_ = 0;  // cuts at the latest decision
  int64_t made_ = 0;       // cuts that the rate of the run has made
  std::optional<Configuration> going_to_;  // of the latest decision, and the cuts that the rate makes there
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
