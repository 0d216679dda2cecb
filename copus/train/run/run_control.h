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
  // Keeps a reference to `adaptation`. `note` shows the user what is wrong with the folder of commands.
  RunControl(const RunPlan& plan, Adaptation& adaptation, ControlFiles::Note note);
  // Answers all pending requests that the run has ended.
  ~RunControl();
  RunControl(const RunControl&) = delete;
  RunControl& operator=(const RunControl&) = delete;

  // Executes the commands that have arrived since the last call; call it between two steps. Returns the switch that the
  // ranks must make, if any. `standing`: the run is paused at the moment.
  std::optional<SwitchIntent> look(int64_t step, bool standing);
  // Answers the user who requested the switch, if one did. `text`: its outcome in words.
  void after_switch(const SwitchReport& report, const std::string& text);

  // Call when ranks have joined or left, which drops a switch under way.
  void after_ranks_changed();

  // Makes the folder of commands again if somebody has deleted it.
  void put_back_folder() { files_.make_folder(); }

  // Whether the user has asked to pause the run.
  bool pause_wanted() const { return pause_wanted_; }

 private:
  // Execute one command. They return its answer if it is known already, and set `intent` if the ranks must switch.
  std::optional<ControlReply> obey(const ControlFiles::Received& received, int64_t step, bool standing,
                                   std::optional<SwitchIntent>& intent);
  std::optional<ControlReply> force(const ControlFiles::Received& received, int64_t step, bool standing,
                                    std::optional<SwitchIntent>& intent);
  std::string status(int64_t step) const;

  std::string policy_;
  Adaptation& adaptation_;
  ControlFiles files_;
  std::vector<ControlFiles::Received> waiting_;  // commands that wait for the end of a switch under way
  std::optional<std::string> forced_;            // the command whose answer is the outcome of the switch under way
  bool pause_wanted_ = false;
};

}  // namespace copus
