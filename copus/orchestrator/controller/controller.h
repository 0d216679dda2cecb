// Controls a run: observes every step, learns how long steps take, asks the policy for decisions at intervals,
// announces switches and records their outcomes. Without a policy (adapt.policy "none") the controller moves the job
// only on a user's command. A controller is a deterministic state machine without I/O. The run and `copus replay` give
// the same class the same sequence of inputs, and a resumed run restores its controller from its logs.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "copus/config/run_config.h"
#include "copus/orchestrator/controller/input_hash.h"
#include "copus/orchestrator/controller/run_calibration.h"
#include "copus/orchestrator/controller/switch_outcomes.h"
#include "copus/orchestrator/observation.h"
#include "copus/orchestrator/policies/policy.h"
#include "copus/orchestrator/predictions/job_model.h"
#include "copus/orchestrator/predictions/step_time_learner.h"
#include "copus/orchestrator/run_mark.h"
#include "copus/orchestrator/state_values.h"
#include "copus/performance/measured/learning.h"
#include "copus/performance/measured/table.h"
#include "copus/statistics/noise_scale.h"

namespace copus {

// Version of the format of decisions.jsonl; each of its "begin" events states it.
inline constexpr int64_t decision_log_version = 1;

// One decision, as logged in decisions.jsonl.
struct Decision {
  int64_t step = 0;  // the step after which it was made
  int64_t consumed_samples = 0;
  std::string policy;
  Configuration current;
  std::optional<double> noise_scale, noise_scale_low, noise_scale_high, critical_batch;
  // `learning_rate`, `phase`: of the latest step. `clipped_share`: of all updates since the previous decision, the
  // fraction with a clipped gradient; empty if there was no update.
  std::optional<double> learning_rate;
  std::optional<SchedulePhase> phase;
  std::optional<double> clipped_share;
  // Factors on the schedule's learning rate: in the current configuration from the next update on, and in the target
  // (empty if there is none). Both are computed with the cap `rate_cap`, in samples. `rate_cap` is empty if the policy
  // sets its own factors.
  std::optional<double> rate_factor, target_rate_factor, rate_cap;
  Choice choice;
  bool moves = false;             // whether a switch was announced; false for a hold or mere advice
  int64_t commit_after_step = 0;  // of a switch: the boundary at which all ranks switch
  uint64_t inputs_hash = 0;       // of all inputs so far; shows where a replay begins to differ
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
  // Steps between the announcement of a re-layout and its commit. During these steps ranks prepare the re-layout and
  // continue to train. A switch of batch or micro-batch alone commits at the boundary after the announcement has
  // reached every rank.
  static constexpr int64_t lead_steps = 2;

  // Largest fraction of the run between two decisions, whatever adapt.interval_samples is. The noise scale phi is
  // averaged over at most a quarter of the run, so the average covers at least four decisions.
  static constexpr double longest_interval = NoiseWindow().largest_share / 4;

  // Makes the controller of a run that begins in `initial` (configuration_of(config), or a checkpoint's configuration),
  // on as many ranks as `initial` needs. `knowledge` contains the measured step times. `file` is the text of the file
  // that adapt.file names, or empty. `rate_factor` is the run's factor on the learning rate; if empty, the controller
  // uses the factor of a new run. Throws what make_policy throws. Throws UserError if the policy has no candidates, if
  // a batch of a schedule does not fit into memory, or if the cluster's speed is not described. Never throws without a
  // policy.
  Controller(const AnyConfig& config, const Configuration& initial, const Knowledge& knowledge,
             const std::string& file = "", std::optional<double> rate_factor = std::nullopt);

  // Returns whether the controller depends on the steps that it observes, because a policy decides or step times are
  // predicted.
  static bool learns_from_steps(const AnyConfig& config);

  // Returns the state, from which a controller that was made with the same arguments can continue. The hash of inputs
  // restarts here, in this controller and in the one that continues.
  std::vector<std::string> save_state();
  // Restores a state that save_state returned. This controller must have been made with the same arguments as the saved
  // controller. Throws UserError if values are damaged, or the run's settings do not fit them.
  void restore_state(const std::vector<std::string>& state);

  // Call when the run resumes in a new process. The process' first steps set up memory and caches, so they are not
  // measured. Decisions are due at the same steps as without the interruption, so that the learning rate changes at the
  // same steps.
  void mark_resumed();
  // Call after every step, before anything else that happens at its boundary.
  Reaction observe(const Observation& observation);
  // Records the outcome of an intent. The controller does not again choose a configuration that was vetoed or rolled
  // back. If memory was lacking, it also does not choose configurations that have never run and are predicted to need
  // at least as much memory. In a run that only advises, call this also for switches that another program made.
  void report(const SwitchReport& report);
  // Records that the job's ranks have changed and that the job was moved to a configuration for the new ranks, without
  // a decision of the policy. From here on, candidates are for as many ranks as that configuration needs. A switch
  // under way is dropped, so do not call report() for it. The batch stays, so the controller keeps the measured step
  // times and noise scale, the factor on the learning rate, and a pin. Everything else restarts as after a re-layout.
  void ranks_changed(const RanksChanged& change);
  // Returns the calibration that is due, in which the run measures its critical batch by branches; empty if none is
  // due. None is due while a switch is under way, while the run is pinned, or if there is no other batch to choose.
  std::optional<CalibrationRequest> calibration_due() const;
  // Records such a calibration. Decisions follow the critical batches that were measured so far (BatchWorth).
  void calibrated(const RunCalibration& calibration);
  const RunCalibrations& calibrations() const { return calibrations_; }
  // Obeys a command, and returns the switch that it causes, if any. Throws UserError if a target is infeasible or
  // another switch is under way; the message says why.
  std::optional<SwitchIntent> command(const Command& command);

  // The intent that observe or command returned and whose outcome was not reported yet.
  const std::optional<SwitchIntent>& under_way() const { return under_way_; }
  bool pinned() const { return pinned_; }
  // Whether a policy decides; if not, only a user does.
  bool has_policy() const { return policy_ != nullptr; }
  const Configuration& current() const { return current_; }
  // The factor on the learning rate from the next update on.
  double rate_factor() const { return rate_factor_; }
  // The factor that [optimizer] gives in another configuration, at the cap of the latest decision.
  double rate_factor_in(const Configuration& configuration) const;
  // The known step times; empty if step times are not predicted.
  Knowledge knowledge() const { return learner_ ? learner_->knowledge() : Knowledge(); }
  // Predicts steps; empty if the cluster's speed is not described.
  const std::optional<StepTimeLearner>& step_times() const { return learner_; }
  // Expected seconds of a step in the current configuration; only if step times are predicted.
  Corrected expected_step() const { return learner_->expected(); }
  // Expected seconds of a step in any feasible configuration; only if step times are predicted.
  Corrected expected_step(const Configuration& configuration) const {
    return step_in(configuration, learner_->knowledge());
  }
  // Returns the expected seconds for which a re-layout to this strategy, on the same number of ranks, stops training.
  // This is the duration of its plan, corrected by the errors of earlier plans. If no state has to move, it is the
  // median of earlier pauses in which no state moved.
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
  void follow_calibrations();
  int64_t first_boundary(const Configuration& target) const;
  double critical_batch_at(double noise_scale) const;
  Corrected step_in(const Configuration& configuration, const Knowledge& knowledge) const;

  JobConfig config_;
  std::unique_ptr<Policy> policy_;  // null without a policy
  std::shared_ptr<JobModel> job_;
  // Uncorrected predictions for the ranks in use, if a policy needs them. candidates_ has the corrected predictions.
  PerformanceTable table_;
  std::optional<Knowledge> regrouped_with_;  // what table_ was made with after ranks changed
  // Empty if step times are not predicted. Then there is no policy, or a schedule that needs no step times.
  std::optional<StepTimeLearner> learner_;
  Configuration current_;
  double rate_cap_, rate_factor_;
  std::vector<Candidate> candidates_;
  std::optional<int64_t> corrected_at_;              // revision of the learner that corrected the candidates
  int64_t corrected_open_steps_ = 0;                 // its open steps at that time
  std::map<Configuration, std::string> infeasible_;  // with the reason
  // Of the switches that were refused for lack of memory, the one with the fewest predicted bytes.
  struct MemoryRefusal {
    Configuration configuration;
    double bytes = 0;
    std::string reason;
    void visit_state(StateValues& values) { values(configuration, bytes, reason); }
  };
  std::optional<MemoryRefusal> memory_refusal_;
  std::set<Configuration> entered_;  // configurations that the run has been in
  Observation latest_;
  bool is_measured_ = false;  // whether a step in current_ was measured, also before a resume
  int64_t decided_at_ = 0;    // in consumed samples
  int64_t switched_at_ = 0;   // in consumed samples
  RunMark decided_at_share_;
  double switched_at_seconds_ = 0;      // on the run's clock, at the end of the pause
  int64_t steps_in_configuration_ = 0;  // finite steps since the latest switch
  int64_t updates_ = 0;                 // since the latest decision, if known whether they were clipped
  int64_t clipped_updates_ = 0;
  bool pinned_ = false;
  std::optional<SwitchIntent> under_way_;
  SwitchOutcomes::Promise promise_;  // of the switch under way
  struct Pause {
    double seconds;
    double planned;  // 0 if no state moved
    void visit_state(StateValues& values) { values(seconds, planned); }
  };
  std::vector<Pause> pauses_;  // of the re-layouts so far
  InputHash inputs_;
  SwitchOutcomes outcomes_;
  RunCalibrations calibrations_;
};

}  // namespace copus
