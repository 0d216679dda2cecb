// What a run does about its controller, on the rank that writes the run directory: tells it of every step, switch and
// command, keeps decisions.jsonl, and says what happens in words.
#pragma once

#include <functional>
#include <optional>
#include <string>

#include "copus/orchestrator/controller.h"
#include "copus/report/decision_log.h"
#include "copus/report/step_record.h"
#include "copus/train/run_plan.h"

namespace copus {

// A controller that is ready to go on after a step, and how that stands in the log.
struct ControllerStart {
  Controller controller;
  DecisionEvent event;
  std::optional<std::string> note;  // why a resumed run begins with a new one
};

// Of a run whose adapt.policy is not "none", which goes on in plan.start: brought up to date by the run's logs where
// they lead there, a new one otherwise. Writes nothing. Throws UserError as Controller does, and where adapt.file or a
// log cannot be read.
ControllerStart start_controller(const RunPlan& plan, int64_t after_step, const Knowledge& known);

class Adaptation {
 public:
  using Note = std::function<void(const std::string&)>;

  // `note` says a line to a person.
  Adaptation(const RunPlan& plan, int64_t after_step, ControllerStart start, Note note);

  const Controller& controller() const { return controller_; }

  // A step has ended and is in run.jsonl.
  Reaction after_step(const StepRecord& record);
  // What came of a switch. Returns it in words, as it was noted.
  std::string after_switch(const SwitchReport& report);
  // A person's command at the boundary after `step`, as Controller::command.
  std::optional<SwitchIntent> command(int64_t step, const Command& command);

 private:
  void advise(const Decision& decision);

  RunConfig config_;
  Controller controller_;
  DecisionLog log_;
  Note note_;
  std::optional<double> predicted_gain_;  // of the switch that is under way; empty where a person wanted it
  std::optional<Configuration> advised_;  // last, so that it is not said again and again
};

// "step 412: d=1,t=2,p=2,B=16 -> d=4,t=1,p=1,B=32; Goodput +23 % predicted; pause 41 ms". `predicted_gain`: relative;
// empty where nothing was predicted.
std::string describe(const SwitchReport& report, std::optional<double> predicted_gain);

}  // namespace copus
