// A person's commands to the running job (`copus ctl`), on the rank that writes the run directory.
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
  // `adaptation`: null where nothing adapts; nothing can then be pinned or forced.
  RunControl(const RunPlan& plan, Adaptation* adaptation);
  // Whoever still waits for an answer learns that the run has ended.
  ~RunControl();
  RunControl(const RunControl&) = delete;
  RunControl& operator=(const RunControl&) = delete;

  // Between two steps: does what was asked since, and returns what the ranks are to do, if anything. `standing`: the
  // run stands still meanwhile.
  std::optional<SwitchIntent> look(int64_t step, bool standing);
  // A switch that may have been asked for; `text`: what came of it in words.
  void after_switch(const SwitchReport& report, const std::string& text);

  // Whether the run is to stand still.
  bool pause_wanted() const { return pause_wanted_; }

 private:
  // Both return the answer, if there is one already, and fill `intent` where the ranks are to do something.
  std::optional<ControlReply> obey(const ControlFiles::Received& received, int64_t step, bool standing,
                                   std::optional<SwitchIntent>& intent);
  std::optional<ControlReply> force(const ControlFiles::Received& received, int64_t step, bool standing,
                                    std::optional<SwitchIntent>& intent);
  std::string status(int64_t step) const;

  Configuration configuration_;  // where nothing adapts
  std::string policy_;
  Adaptation* adaptation_;
  ControlFiles files_;
  std::vector<ControlFiles::Received> waiting_;  // for a switch that is under way
  std::optional<std::string> forced_;            // to whom its outcome is to be told
  bool pause_wanted_ = false;
};

}  // namespace copus
