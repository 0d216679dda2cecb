// Executes a user's commands to the running job (`copus ctl`), on the rank that writes the run directory.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "copus/report/files/control_files.h"
#include "copus/train/run/adaptation.h"
#include "copus/train/run/run_plan.h"

namespace copus {

class RunControl {
 public:
  // `adaptation` must outlive this object. `note` tells the user about problems with the folder of commands.
  RunControl(const RunPlan& plan, Adaptation& adaptation, ControlFiles::Note note);
  // Answers all pending requests: the run has ended.
  ~RunControl();
  RunControl(const RunControl&) = delete;
  RunControl& operator=(const RunControl&) = delete;

  // Executes the commands that have arrived since the last call; call it between two steps. Returns the switch that the
  // ranks must make, if any. `standing` tells whether the run is paused.
  std::optional<SwitchIntent> obey_commands(int64_t step, bool standing);
  // Answers the user who requested the switch, if any. `text`: its outcome.
  void after_switch(const SwitchReport& report, const std::string& text);

  // Call when ranks have joined or left, which cancels a pending switch.
  void after_ranks_changed();

  // Creates the folder of commands again if it has been deleted.
  void put_back_folder() { files_.make_folder(); }

  // Pauses the run after the step that follows `step`, or lets it continue, as the user's command does.
  void set_pause(int64_t step, bool pause);
  // Returns whether the user has asked to pause the run.
  bool pause_wanted() const { return pause_wanted_; }

 private:
  // Each executes one command. They return the answer if it is known already, and set `intent` if ranks must switch.
  std::optional<ControlReply> obey(const ControlFiles::Received& received, int64_t step, bool standing,
                                   std::optional<SwitchIntent>& intent);
  std::optional<ControlReply> force(const ControlFiles::Received& received, int64_t step, bool standing,
                                    std::optional<SwitchIntent>& intent);
  std::string status(int64_t step) const;

  std::string policy_;
  Adaptation& adaptation_;
  ControlFiles files_;
  std::vector<ControlFiles::Received> waiting_;  // commands that wait for a pending switch
  std::optional<std::string> forced_;            // the command whose answer is the outcome of the pending switch
  bool pause_wanted_ = false;
};

}  // namespace copus
