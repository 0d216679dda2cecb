// decisions.jsonl: the decisions of a run's controller and their outcomes, one JSON object per event, appended and
// handed to the system at once. Together with run.jsonl it holds everything that the controller was told, so that a
// resumed run can bring a new one up to date and `copus replay` can ask another one.
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

#include "copus/orchestrator/controller.h"
#include "copus/report/line_log.h"

namespace copus {

// The beginning of a controller that does not know what an earlier one knew of the run: at the start, and where a run
// is resumed with another configuration file.
struct ControllerBegin {
  int64_t step = 0;  // the step after which it begins
  std::string policy;
  bool advise = false;
  Configuration configuration;
  Knowledge knowledge;
  std::string file;  // the text of adapt.file
  // The factor on the learning rate that the run has. Empty: the one that a run begins with in this configuration.
  std::optional<double> rate_factor = {};
  // The state that the controller begins with (Controller::restore_state), where it knows what the one before knew and
  // other settings hold from here on. Empty: it knows nothing else.
  std::vector<std::string> state = {};
};

// Reads adapt.file for a controller; empty where none is named. Throws UserError where it cannot be read.
std::string policy_file_text(const JobConfig& config);

// The resumption of a run by a new process, whose controller knows what the one before it knew.
struct ControllerResumed {
  int64_t step = 0;  // the step after which it goes on
};

// The state of a controller (Controller::save_state), so that a resumed run repeats the steps after it alone.
struct ControllerState {
  int64_t step = 0;        // the step after which the controller was in it
  int64_t begin_step = 0;  // of the controller's ControllerBegin
  Configuration configuration;
  std::vector<std::string> values;
};

// A state is logged after every so many steps.
inline constexpr int64_t steps_between_states = 1000;

struct LoggedRealised {
  int64_t step = 0;  // the step after which it was known
  Realised realised;
};

struct LoggedCommand {
  int64_t step = 0;  // the step after which it was given
  Command command;
};

// Steps of a job that another program trains that cannot be measured any more.
struct Unmeasured {
  int64_t step = 0;    // the last step before them
  std::string reason;  // for people
};

using DecisionEvent = std::variant<ControllerBegin, ControllerResumed, ControllerState, Decision, SwitchReport,
                                   LoggedRealised, LoggedCommand, RanksChanged, Unmeasured>;

// The step boundary at which an event happened: after the observation of that step.
int64_t step_of(const DecisionEvent& event);

// Converts an event into its line of the file, without the line end, and back. Throws UserError that names what is
// wrong.
std::string to_line(const DecisionEvent& event);
DecisionEvent decision_event_from_line(std::string_view line);

class DecisionLog {
 public:
  // Opens <run_dir>/decisions.jsonl. A resumed run keeps the events up to and including the boundary
  // `resume_after_step` and cuts the rest.
  // Throws UserError: the file cannot be opened or cut, or holds a damaged line among those to keep, or one of an
  // earlier step than the line before it; in a new run: it is there already.
  explicit DecisionLog(const std::filesystem::path& run_dir, std::optional<int64_t> resume_after_step = std::nullopt);

  // Throws UserError if the line cannot be written (full disk); the log then still ends with a whole line.
  void append(const DecisionEvent& event);

  // As of LineLog.
  bool is_in_place() const { return lines_.is_in_place(); }
  void put_back() { lines_.put_back(); }
  // Returns when the disk has all that was appended. Throws UserError as LineLog::sync.
  void sync() { lines_.sync(); }

 private:
  LineLog lines_;
};

// Reads a log, up to the events at the boundary `last_step`; empty where there is no such file. A last line without its
// line end is left out. Throws UserError naming a line that is damaged, or of an earlier step than the line before it.
std::vector<DecisionEvent> read_decision_log(const std::filesystem::path& path,
                                             int64_t last_step = std::numeric_limits<int64_t>::max());

// The events that bring a controller up to date at the boundary `last_step` (bring_up_to_date): where a recent state is
// logged, its beginning, the state and the events after it, found without reading the rest; otherwise all of them.
std::vector<DecisionEvent> read_decisions_to_resume(const std::filesystem::path& path, int64_t last_step);

// The same for people, who see no states and few of the decisions that hold: of a log of more than 16 MiB, so that its
// size hardly counts, only twice `most_held` of these at most are parsed, evenly over the run. All other events are
// there.
std::vector<DecisionEvent> read_decisions_to_show(const std::filesystem::path& path, size_t most_held = 2000);

// Writes the page of a run, whose events these are, into its directory.
using PageWriter = std::function<void(const std::filesystem::path& directory, std::vector<DecisionEvent> events)>;

}  // namespace copus
