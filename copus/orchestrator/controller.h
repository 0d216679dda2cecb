// The controller of a run: it is told of every step, learns how long steps take, asks the policy at intervals,
// announces switches and follows what came of them. Where no policy decides (adapt.policy "none") it moves the job by a
// user's command alone. A deterministic state machine without I/O: the run and `copus replay` drive the same object
// with the same sequence, and a resumed run brings a new one up to date from its logs.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "copus/config/run_config.h"
#include "copus/orchestrator/input_hash.h"
#include "copus/orchestrator/job_model.h"
#include "copus/orchestrator/observation.h"
#include "copus/orchestrator/policy.h"
#include "copus/orchestrator/run_mark.h"
#include "copus/orchestrator/state_values.h"
#include "copus/orchestrator/step_time_learner.h"
#include "copus/orchestrator/switch_outcomes.h"
#include "copus/performance/learning.h"
#include "copus/performance/table.h"
#include "copus/statistics/noise_scale.h"

namespace copus {

// Of the format of decisions.jsonl, which its beginnings say.
inline constexpr int64_t decision_log_version = 1;

// One decision, as decisions.jsonl keeps it.
struct Decision {
  int64_t step = 0;  // the step after which it was made
  int64_t consumed_samples = 0;
  std::string policy;
  Configuration current;
  std::optional<double> noise_scale, noise_scale_low, noise_scale_high, critical_batch;
  // Of the step before: its learning rate and the part of the schedule. And the share of updates whose gradient was
  // clipped, among those since the decision before (empty: there was none).
  std::optional<double> learning_rate;
  std::optional<SchedulePhase> phase;
  std::optional<double> clipped_share;
  // Factors on the schedule's learning rate: from the next update on, and in the target (empty: to stay); and the cap
  // that both count with, in samples (empty: the policy states factors of its own).
  std::optional<double> rate_factor, target_rate_factor, rate_cap;
  Choice choice;
  bool moves = false;             // announced as a switch; false where it holds or only advises
  int64_t commit_after_step = 0;  // of a switch: the boundary at which all ranks switch
  uint64_t inputs_hash = 0;       // of everything observed before; shows where a replay begins to differ
};

// The reaction to a step.
struct Reaction {
  std::optional<Decision> decision;    // set when a decision was due
  std::optional<SwitchIntent> intent;  // set when the decision moves the job
  std::optional<double>
      rate_factor;                 // factor on the learning rate from the next update on, set when a decision was due
  std::vector<Realised> realised;  // outcomes of earlier switches that became known
};

class Controller {
 public:
  // Steps between the announcement of a re-layout and its commit, in which ranks prepare beside training. A switch of
  // batch or micro-batch alone commits at the boundary after the announcement has reached every rank.
  static constexpr int64_t lead_steps = 2;

  // Share of the run from one decision to the next at most, however many samples adapt.interval_samples are: phi is
  // averaged over a quarter of the run at most, and is looked at four times within that.
  static constexpr double longest_interval = NoiseWindow().largest_share / 4;

  // Makes the controller of a run that begins in `initial` (configuration_of(config), or that of a checkpoint), for as
  // many ranks as that needs, with `knowledge` of step times, and with the text of adapt.file (empty where none is
  // named). `rate_factor` is the factor on the learning rate that the run has; empty: the one that a run begins with.
  // Throws UserError where a policy has nothing to choose among, a schedule has a batch that memory does not allow, or
  // nothing says how fast the cluster computes, and what make_policy throws; never where no policy decides.
  Controller(const AnyConfig& config, const Configuration& initial, const Knowledge& knowledge,
             const std::string& file = "", std::optional<double> rate_factor = std::nullopt);

  // Tells whether what the controller of such a run does depends on the steps that it observes: a policy decides, or
  // step times are predicted.
  static bool learns_from_steps(const AnyConfig& config);

  // Returns everything that the controller has learned and noted since it was made, for one that is made alike to go on
  // from. The hash of what follows begins anew here, in both.
  std::vector<std::string> save_state();
  // Goes on from a state. The controller must have been made as that one was. Throws UserError where the values are
  // damaged, or the run's settings do not fit them.
  void restore_state(const std::vector<std::string>& state);

  // Notes that the run goes on in a new process, whose first steps set up memory and caches and are not measured.
  // Decisions are due at the same steps as without, so that the learning rate follows as it would have.
  void resumed();
  // Call after every step, before anything else that happens at its boundary.
  Reaction observe(const Observation& observation);
  // Notes the outcome of an intent. A configuration that was vetoed or rolled back is not chosen again; where memory
  // was lacking, nor is any that has never been run and is predicted to need as much. A controller that only advises is
  // also told of switches that somebody else decided.
  void report(const SwitchReport& report);
  // Notes that the job has other ranks, and that it was moved to a configuration for them; no decision of a policy.
  // From here on the candidates are those for as many ranks as that configuration needs. A switch under way is dropped
  // and not reported any more. What is known of step times and of the noise scale, the learning rate's factor and a pin
  // go on, since the batch does; all else begins as after a re-layout.
  void ranks_changed(const RanksChanged& change);
  // Obeys a command and returns what the ranks are to do, if anything. Throws UserError where a target is infeasible;
  // the message says why.
  std::optional<SwitchIntent> command(const Command& command);

  // The intent that is under way: returned by observe or command, and not reported yet.
  const std::optional<SwitchIntent>& under_way() const { return under_way_; }
  bool pinned() const { return pinned_; }
  // Tells whether a policy decides anything here, or a user alone.
  bool has_policy() const { return policy_ != nullptr; }
  const Configuration& current() const { return current_; }
  // The factor on the learning rate from the next update on.
  double rate_factor() const { return rate_factor_; }
  // Likewise in another configuration, by [optimizer] at the cap of the latest decision.
  double rate_factor_in(const Configuration& configuration) const;
  // What is known of step times; nothing where they are not predicted.
  Knowledge knowledge() const { return learner_ ? learner_->knowledge() : Knowledge(); }
  // What predicts steps in the current configuration; empty without a policy where nothing says how fast the cluster
  // computes.
  const std::optional<StepTimeLearner>& step_times() const { return learner_; }
  // Expected seconds of a step in the current configuration, where steps are predicted.
  Corrected expected_step() const { return learner_->expected(); }
  // Likewise in any feasible one.
  Corrected expected_step(const Configuration& configuration) const {
    return step_in(configuration, learner_->knowledge());
  }
  // Expected seconds for which a move to this strategy, of as many ranks, would stop training: what its plan takes,
  // corrected by what earlier re-layouts took beside what their plans take. Where no state moves, what earlier moves
  // of none took.
  double pause_seconds(const ParallelStrategy& target);

 private:
  void visit_state(StateValues& values);
  void check_schedule_fits();
  bool is_decision_due(bool has_counted) const;
  Decision decide();
  void describe_schedule(Decision& decision);
  bool holds_batch() const;
  void hold_batch(Choice& choice) const;
  std::optional<SwitchIntent> force(const Configuration& target);
  double gain_of(const Configuration& target, double target_rate) const;
  void check_feasible(const Configuration& target);
  std::optional<std::string> why_refused(const Configuration& target);
  void note_refusal(const SwitchReport& report);
  void list_candidates();
  void correct_candidates();
  void correct_candidates(int64_t open_steps);
  void enter(const Configuration& configuration);
  void restart_counting(double pause_seconds);
  void begin_switch(const SwitchIntent& intent, double predicted_gain);
  int64_t first_boundary(const Configuration& target) const;
  double critical_batch_at(double noise_scale) const;
  Corrected step_in(const Configuration& configuration, const Knowledge& knowledge) const;

  JobConfig config_;
  std::unique_ptr<Policy> policy_;  // null where nobody decides
  std::shared_ptr<JobModel> job_;
  // Uncorrected predictions, for the ranks that are used, as far as a policy needs them; the candidates are corrected.
  PerformanceTable table_;
  std::optional<Knowledge> regrouped_with_;  // what table_ was made with, since the job got other ranks
  // Empty where step times are not predicted: nobody decides there, or a schedule that needs none.
  std::optional<StepTimeLearner> learner_;
  Configuration current_;
  double rate_cap_, rate_factor_;
  std::vector<Candidate> candidates_;
  std::optional<int64_t> corrected_at_;              // revision of the learner that corrected the candidates
  int64_t corrected_open_steps_ = 0;                 // its open steps at that time
  std::map<Configuration, std::string> infeasible_;  // with the reason
  // Of the switches that were refused for want of memory, the one to the least predicted bytes.
  struct MemoryRefusal {
    Configuration configuration;
    double bytes = 0;
    std::string reason;
    void visit_state(StateValues& values) { values(configuration, bytes, reason); }
  };
  std::optional<MemoryRefusal> memory_refusal_;
  std::set<Configuration> entered_;  // configurations that the run has been in
  Observation latest_;
  bool is_measured_ = false;  // whether steps of the current configuration were, also before the run was resumed
  int64_t decided_at_ = 0;    // in consumed samples
  int64_t switched_at_ = 0;   // likewise
  RunMark decided_at_share_;
  double switched_at_seconds_ = 0;      // of the run's clock, at the end of the pause
  int64_t steps_in_configuration_ = 0;  // finite ones since the latest switch
  int64_t updates_ = 0;                 // since the latest decision, as far as it is known whether they were clipped
  int64_t clipped_updates_ = 0;
  bool pinned_ = false;
  std::optional<SwitchIntent> under_way_;
  SwitchOutcomes::Promise promise_;  // of the switch under way
  struct Pause {
    double seconds;
    double planned;  // 0 where no state moved
    void visit_state(StateValues& values) { values(seconds, planned); }
  };
  std::vector<Pause> pauses_;  // of the re-layouts so far
  InputHash inputs_;
  SwitchOutcomes outcomes_;
};

}  // namespace copus
