// Obeys a user's commands to the running job (`copus ctl`), on the rank that writes the run directory.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "copus/report/control_files.h"
#include "copus/train/adaptation.h"
#include "copus/train/run_plan.h"

namespace copus {

class RunControl {
 public:
  // Refers to `adaptation` for its whole life. `note` tells the user what is odd about the folder of commands.
  RunControl(const RunPlan& plan, Adaptation& adaptation, ControlFiles::Note note);
  // Tells everyone who still waits for an answer that the run has ended.
  ~RunControl();
  RunControl(const RunControl&) = delete;
  RunControl& operator=(const RunControl&) = delete;

  // Obeys, between two steps, the commands that have come since the last call, and returns what the ranks are to do, if
  // anything. `standing`: the run is paused meanwhile.
  std::optional<SwitchIntent> look(int64_t step, bool standing);
  // Answers the user who asked for a switch, if one did; `text`: its outcome in words.
  void after_switch(const SwitchReport& report, const std::string& text);

  // Tells that ranks have come or gone, which drops a switch under way.
  void after_ranks_changed();

  // Makes the folder of commands again where somebody has deleted it.
  void put_back_folder() { files_.make_folder(); }

  // Tells whether the run is to be paused.
  bool pause_wanted() const { return pause_wanted_; }

 private:
  // Obey one command: both functions return the answer, if there is one already, and fill `intent` where the ranks are
  // to do something.
  std::optional<ControlReply> obey(const ControlFiles::Received& received, int64_t step, bool standing,
                                   std::optional<SwitchIntent>& intent);
  std::optional<ControlReply> force(const ControlFiles::Received& received, int64_t step, bool standing,
                                    std::optional<SwitchIntent>& intent);
  std::string status(int64_t step) const;

  std::string policy_;
  Adaptation& adaptation_;
  ControlFiles files_;
  std::vector<ControlFiles::Received> waiting_;  // commands that wait for the end of a switch under way
  std::optional<std::string> forced_;            // the command that is to be told the outcome of a switch
  bool pause_wanted_ = false;
};

}  // namespace copus
