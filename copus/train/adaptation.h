// The use that a run makes of its controller, on the rank that writes the run directory: tells it of every step, switch
// and command, keeps decisions.jsonl, and says what happens in words.
#pragma once

#include <functional>
#include <optional>
#include <string>

#include "copus/orchestrator/controller.h"
#include "copus/record/step_record.h"
#include "copus/report/decision_log.h"
#include "copus/train/run_plan.h"
#include "copus/train/training_state.h"

namespace copus {

// A controller that is ready to go on after a step, and what the log is to say about that.
struct ControllerStart {
  Controller controller;
  DecisionEvent event;
  int64_t begin_step = 0;           // the step after which the controller, or the one that it goes on from, began
  int64_t state_step = 0;           // likewise of its latest state in the log; begin_step where that has none
  std::optional<std::string> note;  // why a resumed run begins with a new controller
};

// Makes the controller of a run that goes on in plan.start from this state: it is brought up to date from the run's
// logs where these allow it, and is a new one otherwise. Writes nothing. Throws UserError as Controller does, and where
// adapt.file or a log cannot be read.
ControllerStart start_controller(const RunPlan& plan, const TrainingState& state, const Knowledge& known);

class Adaptation {
 public:
  using Note = std::function<void(const std::string&)>;

  // `note` shows a line to the user.
  Adaptation(const RunPlan& plan, int64_t after_step, ControllerStart start, Note note);

  const Controller& controller() const { return controller_; }

  // Call when a step has ended and is in run.jsonl.
  Reaction after_step(const StepRecord& record);
  // Tells the controller the outcome of a switch. Returns the outcome in words, as it was noted.
  std::string after_switch(const SwitchReport& report);
  // Tells the controller that it has other ranks.
  void after_ranks_changed(const RanksChanged& change);
  // Obeys a user's command at the boundary after `step`, as Controller::command.
  std::optional<SwitchIntent> command(int64_t step, const Command& command);
  // Returns when the disk has the log.
  void sync();

  // Tells whether the log still is where it was.
  bool has_log() const { return log_.is_in_place(); }
  // Makes the log again where somebody has deleted it. Throws UserError as LineLog::put_back.
  void put_back_log() { log_.put_back(); }

 private:
  void advise(const Decision& decision);

  void log_state_if_due(int64_t after_step);

  RunConfig config_;
  Controller controller_;
  int64_t begin_step_, state_step_;
  DecisionLog log_;
  Note note_;
  std::optional<double> predicted_gain_;  // of the switch that is under way; empty where a user asked for it
  std::optional<Configuration> advised_;  // latest advice, kept so that it is not repeated
};

// Describes a switch: "step 412: d=1,t=2,p=2,B=16 -> d=4,t=1,p=1,B=32; Goodput +23 % predicted; pause 41 ms".
// `predicted_gain`: relative; empty where nothing was predicted.
std::string describe(const SwitchReport& report, std::optional<double> predicted_gain);

}  // namespace copus
