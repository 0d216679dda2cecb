// decisions.jsonl: the decisions of a run's controller and their outcomes, one JSON object per event. Each line is
// written at once. Together with run.jsonl, this log holds all inputs of the controller, so that a resumed run can
// bring a new controller up to date, and `copus replay` can compare other controllers with it.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "copus/orchestrator/controller/controller.h"
#include "copus/report/logs/line_log.h"

namespace copus {

// The start of a controller without the knowledge of earlier controllers. This happens at the start of a run, and when
// the run is resumed with a different configuration file.
struct ControllerBegin {
  int64_t step = 0;  // the step after which it begins
  std::string policy;
  bool advise = false;
  Configuration configuration;
  Knowledge knowledge;
  std::string file;  // the text of adapt.file
  // The run's current learning rate factor. Empty: the factor with which a run starts in this configuration.
  std::optional<double> rate_factor = {};
  // The state from which the controller starts (Controller::restore_state), if it continues from an earlier
  // controller's state with changed settings. Otherwise empty.
  std::vector<std::string> state = {};
};

// Reads adapt.file for a controller; empty if no file is named. Throws UserError if the file cannot be read.
std::string policy_file_text(const JobConfig& config);

// The resumption of a run by a new process, whose controller continues with the state of the previous controller.
struct ControllerResumed {
  int64_t step = 0;  // the step after which it continues
};

// The state of a controller (Controller::save_state). With it, a resumed run has to replay only the steps after it.
struct ControllerState {
  int64_t step = 0;        // the step after which the controller had this state
  int64_t begin_step = 0;  // of the controller's ControllerBegin
  Configuration configuration;
  std::vector<std::string> values;
};

// The number of steps between logged states.
inline constexpr int64_t steps_between_states = 1000;

struct LoggedRealised {
  int64_t step = 0;  // the step after which the outcome was known
  Realised realised;
};

struct LoggedCommand {
  int64_t step = 0;  // the step after which the command was given
  Command command;
};

// Says that the steps of a job that another program trains can no longer be measured.
struct Unmeasured {
  int64_t step = 0;    // the last step that could be measured
  std::string reason;  // in words, for users
};

using DecisionEvent = std::variant<ControllerBegin, ControllerResumed, ControllerState, Decision, SwitchReport,
                                   LoggedRealised, LoggedCommand, RanksChanged, Unmeasured, RunCalibration>;

// The step boundary of an event: after the observation of this step.
int64_t step_of(const DecisionEvent& event);

// Convert an event to its line of the file, without the line end, and back. Throw UserError that says what is wrong.
std::string to_line(const DecisionEvent& event);
DecisionEvent decision_event_from_line(std::string_view line);

class DecisionLog {
 public:
  // Opens <run_dir>/decisions.jsonl. A resumed run keeps the events up to and including the boundary
  // `resume_after_step` and truncates the rest. Throws UserError if the file cannot be opened or truncated, or if a
  // kept line is damaged or its step is earlier than the previous line's. In a new run, throws UserError if the file
  // already exists.
  explicit DecisionLog(const std::filesystem::path& run_dir, std::optional<int64_t> resume_after_step = std::nullopt);

  // Throws UserError if the line cannot be written (full disk). The log then still ends with a whole line.
  void append(const DecisionEvent& event);

  // As in LineLog.
  bool is_in_place() const { return lines_.is_in_place(); }
  void put_back() { lines_.put_back(); }
  // Returns when everything appended is on the disk. Throws UserError as LineLog::sync does.
  void sync() { lines_.sync(); }

 private:
  LineLog lines_;
};

// Returns the events of a log up to and including the boundary `last_step`; empty if the file does not exist. Ignores a
// last line without line end. Throws UserError that names the line if a line is damaged or its step is earlier than the
// previous line's.
std::vector<DecisionEvent> read_decision_log(const std::filesystem::path& path,
                                             int64_t last_step = std::numeric_limits<int64_t>::max());

// Returns the events that bring a controller up to date at the boundary `last_step` (bring_up_to_date). If a recent
// state is logged, these are the controller's ControllerBegin, this state and the events after it; the log before is
// not read. Otherwise these are all events.
std::vector<DecisionEvent> read_decisions_to_resume(const std::filesystem::path& path, int64_t last_step);

// Returns whether the run that writes this log is paused by a command; false if the file does not exist. A resumption
// ends the pause, so a process that takes over a paused run logs the command again. Reads at most the last 16 MiB of
// the log, which suffices because a paused run logs little. Throws UserError if a line of a command is damaged.
bool is_run_paused(const std::filesystem::path& path);

// Returns the events to show to people, without states. A log of more than 16 MiB would take long to parse, so of its
// decisions not to switch, at most 2 * `most_held` are returned, evenly spread over the run.
std::vector<DecisionEvent> read_decisions_to_show(const std::filesystem::path& path, size_t most_held = 2000);

// Writes the web page of a run with these events into its directory.
using PageWriter = std::function<void(const std::filesystem::path& directory, std::vector<DecisionEvent> events)>;

}  // namespace copus
