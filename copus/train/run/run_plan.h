// Resolves a request to train: the configuration, the run directory, and the checkpoint to resume from.
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
  std::string config_path;             // may be empty with `resume`: the run directory's own configuration is used
  std::vector<std::string> overrides;  // "section.key=value"
  std::string run_directory;           // empty: runs/<config name>-<date>-<time>
  bool resume = false;
  bool has_memory = false;        // the state may be in memory, so an undamaged checkpoint is not required
  bool new_data = false;          // the sources of data.train may differ from the earlier ones
  bool dry_run = false;           // reports what the run would need, and writes nothing
  int64_t trace_steps = 0;        // number of steps to write a timeline of
  std::string program = "copus";  // name of the program, for the commands that a run suggests at its end
  PageWriter write_page = {};     // called when the run ends; empty: no page
};

struct RunPlan {
  std::string program;         // RunRequest::program
  int64_t trace_steps = 0;     // RunRequest::trace_steps
  PageWriter write_page = {};  // RunRequest::write_page
  RunConfig config;
  Configuration start;  // configuration of the checkpoint, or that of the file if the user requests it
  std::filesystem::path directory;
  bool resume = false;                    // the directory holds a run to resume
  std::optional<Checkpoint> checkpoint;   // the one to resume from, tensors not verified; empty: begin from the start
  std::vector<std::string> damage;        // in checkpoints later than that one, a clause for each
  int64_t logged_step = 0;                // the latest step in the run log when the plan was made
  bool state_is_in_memory = false;        // ranks survived with the state: no checkpoint is of a later step
  bool takes_over = false;                // a process of this job wrote into the directory, and may not have ended yet
  std::vector<std::string> changes;       // settings that differ from those at the beginning of the run
  std::vector<std::string> effects = {};  // of these changes
  bool new_data = false;                  // RunRequest::new_data
};

// A run directory for a user who names none. No other job that starts at the same time gets the same one.
class ClaimedDirectory {
 public:
  // Makes the folder `wanted`, or if it exists the first free one of wanted-2, wanted-3, ... Throws UserError.
  explicit ClaimedDirectory(const std::filesystem::path& wanted);
  // Removes the folders that it made if the run left nothing in them.
  ~ClaimedDirectory();
  ClaimedDirectory(const ClaimedDirectory&) = delete;
  ClaimedDirectory& operator=(const ClaimedDirectory&) = delete;

  const std::filesystem::path& path() const { return directory_; }

 private:
  std::filesystem::path directory_;
  bool made_parent_ = false;
};

// Reads configuration and checkpoint, and returns the plan of the run; writes nothing. If `resume` is given with a
// configuration and a directory in which no run has begun yet, the plan starts one, so that a scheduler can repeat one
// command line. Throws UserError
// - for any mistake in the configuration,
// - for a run directory that is not empty, without `resume`,
// - if there is nothing to resume, or a checkpoint is needed and none is undamaged,
// - if a setting differs that may not change within a run.
RunPlan plan_run(const RunRequest& request);

// Sets `checkpoint` to the newest undamaged one of the run, and sets `damage` and `logged_step`. Throws UserError if
// all are damaged, unless the run has its state in memory.
void take_newest_checkpoint(RunPlan& plan, bool has_memory = false);

// Rules for changing a key of the configuration when a run is resumed.
enum class ChangeOnResume {
  free,         // limits, evaluation, checkpoints, logging, device, threads, layout, policy, cluster, data's place
  by_override,  // the optimizer, batch sizes, clipping, precision: only by an override, and it is noted
  never,        // the model, the seed, the sequence length, how the data are cut
};
ChangeOnResume change_on_resume(const std::string& key);

// Compares the configuration of a run with the configuration with which it is resumed. Returns one line for each change
// to report. A precision of `automatic` in `now` means the precision of `then`. The same holds for other settings that
// `now` leaves to the run. `overrides` as in RunRequest. Throws UserError that names the key and both values if a change
// is not allowed.
std::vector<std::string> check_changes(const RunConfig& then, const RunConfig& now,
                                       const std::vector<std::string>& overrides);

}  // namespace copus
