// Connects a run to its controller, on the rank that writes the run directory: passes on every step, switch and
// command, writes decisions.jsonl, and reports decisions to the user.
#pragma once

#include <functional>
#include <optional>
#include <string>

#include "copus/orchestrator/controller/controller.h"
#include "copus/record/step_record.h"
#include "copus/report/logs/decision_log.h"
#include "copus/train/run/run_plan.h"
#include "copus/train/step/training_state.h"

namespace copus {

// A controller that is ready for the step after `state`, and the log entry about its start.
struct ControllerStart {
  Controller controller;
  DecisionEvent event;
  int64_t begin_step = 0;           // the step after which it, or the logged controller that it continues, began
  int64_t state_step = 0;           // the step of its latest state in the log; begin_step if there is none
  std::optional<std::string> note;  // why a resumed run begins with a new controller
};

// Makes the controller of a run that continues in plan.start from `state`. It is restored from the run's logs if
// possible; otherwise it is new. Writes nothing. Throws UserError as Controller does, or if adapt.file or a log cannot
// be read.
ControllerStart start_controller(const RunPlan& plan, const TrainingState& state, const Knowledge& known);

class Adaptation {
 public:
  using Note = std::function<void(const std::string&)>;

  // `note`: shows a line to the user.
  Adaptation(const RunPlan& plan, int64_t after_step, ControllerStart start, Note note);

  const Controller& controller() const { return controller_; }

  // Call after a step, once its record is in run.jsonl.
  Reaction after_step(const StepRecord& record);
  // Reports a switch's outcome to the controller. Returns the logged text.
  std::string after_switch(const SwitchReport& report);
  // Reports a calibration to the controller.
  void after_calibration(const RunCalibration& calibration);
  // Reports a change of the job's ranks to the controller.
  void after_ranks_changed(const RanksChanged& change);
  // Executes a user's command at the boundary after `step` (Controller::command).
  std::optional<SwitchIntent> command(int64_t step, const Command& command);
  // Returns once the log is durable on disk.
  void sync();

  // Returns whether the log file still exists.
  bool has_log() const { return log_.is_in_place(); }
  // Writes the log again if it has been deleted. Throws UserError as LineLog::put_back does.
  void put_back_log() { log_.put_back(); }

 private:
  void advise(const Decision& decision);

  void log_state_if_due(int64_t after_step);

  RunConfig config_;
  Controller controller_;
  int64_t begin_step_, state_step_;
  DecisionLog log_;
  Note note_;
  std::optional<double> predicted_gain_;  // of the pending switch; empty if a user requested it
  std::optional<Configuration> advised_;  // latest advice, to avoid repeating it
};

// Describes a switch: "step 412: d=1,t=2,p=2,B=16 -> d=4,t=1,p=1,B=32; Goodput +23 % predicted; pause 41 ms".
// `predicted_gain`: relative; empty without a prediction.
std::string describe(const SwitchReport& report, std::optional<double> predicted_gain);

}  // namespace copus
