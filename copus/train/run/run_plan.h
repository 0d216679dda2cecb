// Resolves a request to train: configuration, run directory, and the checkpoint from which to resume.
#pragma once

#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "copus/checkpoint/checkpoint.h"
#include "copus/config/run_config.h"
#include "copus/report/logs/decision_log.h"

namespace copus {

struct RunRequest {
  std::string config_path;             // may be empty with `resume`, which uses the run directory's configuration
  std::vector<std::string> overrides;  // "section.key=value"
  std::string run_directory;           // empty: runs/<config name>-<date>-<time>
  bool resume = false;
  bool has_memory = false;        // whether state may be in memory, so that no undamaged checkpoint is required
  bool new_data = false;          // whether the sources of data.train may differ from the earlier ones
  bool dry_run = false;           // whether to report what the run would need, and write nothing
  int64_t trace_steps = 0;        // number of steps to trace in a timeline
  std::string program = "copus";  // name of the program, in commands that a run suggests when it ends
  PageWriter write_page = {};     // called at the end of the run; empty: no page
};

struct RunPlan {
  std::string program;         // RunRequest::program
  int64_t trace_steps = 0;     // RunRequest::trace_steps
  PageWriter write_page = {};  // RunRequest::write_page
  RunConfig config;
  Configuration start;  // that of the checkpoint, or that of the file if the user requests it
  std::filesystem::path directory;
  bool resume = false;                    // whether the directory holds a run to resume
  std::optional<Checkpoint> checkpoint;   // tensors not verified; empty: begins from the start
  std::vector<std::string> damage;        // one clause for each damaged later checkpoint
  int64_t logged_step = 0;                // latest step in the run log when the plan was made
  bool state_is_in_memory = false;        // whether ranks' memory has the state: no checkpoint is of a later step
  bool takes_over = false;                // whether another process of this job, perhaps still running, wrote there
  std::vector<std::string> changes;       // settings that differ from those at the run's beginning
  std::vector<std::string> effects = {};  // of these changes
  bool new_data = false;                  // RunRequest::new_data
};

// Returns a plan with only those settings that each process takes from its own request. The run's are still missing.
RunPlan plan_without_run(const RunRequest& request);

// A run directory for a user who names none. It is unique even if several jobs start at the same time.
class ClaimedDirectory {
 public:
  // Creates the folder `wanted`, or if it exists the first free one of wanted-2, wanted-3, ... Throws UserError.
  explicit ClaimedDirectory(const std::filesystem::path& wanted);
  // Removes the folders that it created, if they are empty.
  ~ClaimedDirectory();
  ClaimedDirectory(const ClaimedDirectory&) = delete;
  ClaimedDirectory& operator=(const ClaimedDirectory&) = delete;

  const std::filesystem::path& path() const { return directory_; }

 private:
  std::filesystem::path directory_;
  bool made_parent_ = false;
};

// Reads configuration and checkpoint, and returns the plan of the run. Writes nothing. If `resume` is set and a
// configuration is given, but the directory has no run, plans a new run, so that a scheduler can repeat one command
// line. Throws UserError
// - for any mistake in the configuration,
// - for a run directory that is not empty, without `resume`,
// - if there is nothing to resume, or if a checkpoint is needed and all are damaged,
// - if a setting that may not change within a run differs.
RunPlan plan_run(const RunRequest& request);

// Sets `checkpoint` to the run's newest undamaged checkpoint, and sets `damage` and `logged_step`. Throws UserError if
// all checkpoints are damaged, unless the state is in memory.
void take_newest_checkpoint(RunPlan& plan, bool has_memory = false);

// Whether a key of the configuration may change when a run is resumed.
enum class ChangeOnResume {
  free,         // limits, evaluation, checkpoints, logging, device, threads, layout, policy, cluster, paths of data
  by_override,  // the optimizer, batch sizes, clipping, precision: only by an override, and reported
  never,        // the model, the seed, the sequence length, how data are split
};
ChangeOnResume change_on_resume(const std::string& key);

// Compares a run's configuration with the configuration with which it resumes. Returns one line for each change to
// report. Settings that `now` leaves open, such as an automatic precision, keep their values from `then`. `overrides`:
// as in RunRequest. Throws UserError with key and both values if a change is not allowed.
std::vector<std::string> check_changes(const RunConfig& then, const RunConfig& now,
                                       const std::vector<std::string>& overrides);

}  // namespace copus
