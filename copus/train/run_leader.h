// Rank 0's own part of a run: it decides, listens to the user, and writes the run directory. Where another rank becomes
// the first one because ranks before it have failed, it takes this part over from the run's files.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "copus/data/dataset.h"
#include "copus/orchestrator/step_time_learner.h"
#include "copus/performance/stragglers.h"
#include "copus/train/adaptation.h"
#include "copus/train/run_control.h"
#include "copus/train/run_output.h"
#include "copus/train/run_plan.h"
#include "copus/train/trainer.h"

namespace copus {

class RunLeader {
 public:
  // Finds out what is known of step times, and makes the controller that goes on from this state. Writes nothing until
  // begin(). Throws UserError as knowledge_of_run and start_controller do.
  RunLeader(const RunPlan& plan, const TrainingState& state);
  RunLeader(const RunLeader&) = delete;
  RunLeader& operator=(const RunLeader&) = delete;

  // Opens the run directory. `can_judge_speed`: the time that ranks compute tells which of them are slow, and the
  // trainer gathers it.
  void begin(bool can_judge_speed);
  // Shows the user the beginning of the run.
  void introduce(const Dataset& dataset, const World& world);

  bool has_begun() const { return output_.has_value(); }
  RunOutput& output() { return *output_; }
  RunControl& control() { return *control_; }

  // Writes down a step of the trainer and decides; what the ranks are to do is announced to it.
  void add(StepRecord record, Trainer& trainer);
  // Obeys the user's commands, and sees to it that the run directory is there.
  void look(int64_t step, bool standing, Trainer& trainer);
  void keep_directory();
  // Tells whether a checkpoint is to be written as soon as all ranks can: the run directory was made again, without the
  // ones before, or one was given up.
  bool wants_checkpoint() { return wants_checkpoint_ && output_->checkpoints().is_in_place(); }
  void ask_for_checkpoint() { wants_checkpoint_ = true; }
  // Tells that one has been begun.
  void has_begun_checkpoint() { wants_checkpoint_ = false; }
  void add(const SwitchReport& report, const Trainer& trainer);
  // Judges the steps whose seconds have come to rank 0 since the last call.
  void note_stragglers(Trainer& trainer);
  // Announces what was decided before the run was interrupted and no step has heard of.
  void go_on_adapting(Trainer& trainer) const;
  // Goes on with other ranks; a switch under way is dropped.
  void add(const RanksChanged& change, Trainer& trainer);

  // Returns when the disk has the logs that a resumed run goes on from: all that was added so far.
  void sync_logs();

  Knowledge knowledge() const;
  // Profile of the step times that the run has learned; empty where nothing predicts them.
  std::optional<PerformanceProfile> profile() const;
  // How good predictions of step times were, in words.
  std::optional<std::string> conclusion() const;

 private:
  static void announce(const std::optional<SwitchIntent>& intent, Trainer& trainer);
  void announce_rate(Trainer& trainer) const;
  const StepTimeLearner* told_step_times() const;

  const RunPlan& plan_;
  int64_t written_step_;                    // the latest whose record is written and was decided on
  std::optional<StepTimeKnowledge> known_;  // empty: nothing predicts how long steps take
  std::optional<ControllerStart> start_;    // until the run begins
  std::optional<RunOutput> output_;         // first of these, since it keeps other processes out of the run directory
  std::optional<Adaptation> adaptation_;
  std::optional<RunControl> control_;
  std::optional<StragglerNotes> stragglers_;
  bool wants_checkpoint_ = false;
};

}  // namespace copus
