// Rank 0's tasks in a run: it decides, executes the user's commands, and writes the run directory. If rank 0 fails, the
// new rank 0 takes over these tasks, and continues from the contents of the run's files.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "copus/data/dataset.h"
#include "copus/orchestrator/predictions/step_time_learner.h"
#include "copus/performance/measured/stragglers.h"
#include "copus/train/run/adaptation.h"
#include "copus/train/run/run_control.h"
#include "copus/train/run/run_output.h"
#include "copus/train/run/run_plan.h"
#include "copus/train/trainer/trainer.h"

namespace copus {

class RunLeader {
 public:
  // Loads knowledge about step times, and makes the controller that continues from this state. Writes nothing until
  // begin(). Throws UserError as knowledge_of_run and start_controller do.
  RunLeader(const RunPlan& plan, const TrainingState& state);
  RunLeader(const RunLeader&) = delete;
  RunLeader& operator=(const RunLeader&) = delete;

  // Opens the run directory. `can_judge_speed`: whether the computing times that the trainer gathers show which ranks
  // are slow.
  void begin(bool can_judge_speed);
  // Prints the beginning of the run.
  void introduce(const Dataset& dataset, const World& world);

  bool has_begun() const { return output_.has_value(); }
  RunOutput& output() { return *output_; }
  RunControl& control() { return *control_; }

  // Logs a step of the trainer, decides, and announces to the trainer what ranks must do.
  void log_step(StepRecord record, Trainer& trainer);
  // Executes the user's commands, and then does keep_directory(), which restores a run directory that was deleted or
  // moved.
  void obey_commands(int64_t step, bool standing, Trainer& trainer);
  void keep_directory();
  // Returns whether a checkpoint should be written as soon as all ranks can, because the run directory was recreated
  // without the earlier checkpoints, or because a checkpoint was given up.
  bool wants_checkpoint() { return wants_checkpoint_ && output_->checkpoints().is_in_place(); }
  void ask_for_checkpoint() { wants_checkpoint_ = true; }
  // Call when a checkpoint has been started.
  void mark_checkpoint_begun() { wants_checkpoint_ = false; }
  void log_switch(const SwitchReport& report, const Trainer& trainer);
  // Returns the calibration by branches that is due after the latest step, if any.
  std::optional<CalibrationRequest> calibration_due() const { return adaptation_->controller().calibration_due(); }
  // Forecasts how long its branches take, on the run's clock.
  double seconds_of(const CalibrationRequest& request) const;
  // Tells the user that branches pause training after this step, and for about how long.
  void begin_calibration(const CalibrationRequest& request, int64_t step);
  void log_calibration(const RunCalibration& calibration) { adaptation_->after_calibration(calibration); }
  const std::vector<MeasuredCriticalBatch>& critical_batches() const {
    return adaptation_->controller().calibrations().critical_batches();
  }
  // Reports stragglers in the steps whose times have arrived on rank 0 since the last call.
  void note_stragglers(Trainer& trainer);
  // Announces decisions from before an interruption that no step has passed on to the other ranks.
  void go_on_adapting(Trainer& trainer) const;
  // Continues with other ranks; cancels a pending switch.
  void log_ranks_changed(const RanksChanged& change, Trainer& trainer);

  // Returns once everything in the logs that a resumed run reads is durable on disk.
  void sync_logs();

  Knowledge knowledge() const;
  // Returns the profile of step times that the run has learned; empty without predictions of step times.
  std::optional<PerformanceProfile> profile() const;
  // Describes how good predictions of step times were.
  std::optional<std::string> conclusion() const;

 private:
  static void announce(const std::optional<SwitchIntent>& intent, Trainer& trainer);
  void announce_rate(Trainer& trainer) const;
  const StepTimeLearner* told_step_times() const;

  const RunPlan& plan_;
  int64_t written_step_;                    // latest step that was logged and decided on
  std::optional<StepTimeKnowledge> known_;  // empty: no predictions of step times
  std::optional<ControllerStart> start_;    // until the run begins
  std::optional<RunOutput> output_;         // first of these: locks the run directory against other processes
  std::optional<Adaptation> adaptation_;
  std::optional<RunControl> control_;
  std::optional<StragglerNotes> stragglers_;
  bool wants_checkpoint_ = false;
};

}  // namespace copus
