// Resolves a request to train: the configuration, the run directory, and the checkpoint to go on from.
#pragma once

#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "copus/checkpoint/checkpoint.h"
#include "copus/config/run_config.h"
#include "copus/report/decision_log.h"

namespace copus {

struct RunRequest {
  std::string config_path;             // may be empty with `resume`: the run directory's own configuration is used
  std::vector<std::string> overrides;  // "section.key=value"
  std::string run_directory;           // empty: runs/<config name>-<date>-<time>
  bool resume = false;
  bool has_memory = false;        // the run's state may be in memory: it needs no checkpoint that is not damaged
  bool new_data = false;          // the sources of data.train may be others than before
  bool dry_run = false;           // tells what the run would take, and writes nothing
  int64_t trace_steps = 0;        // number of steps that a timeline is written of
  std::string program = "copus";  // name it was called by, for the commands that a run suggests at its end
  PageWriter write_page = {};     // called when the run ends; empty: no page
};

struct RunPlan {
  std::string program;         // RunRequest::program
  int64_t trace_steps = 0;     // RunRequest::trace_steps
  PageWriter write_page = {};  // RunRequest::write_page
  RunConfig config;
  Configuration start;  // configuration of the checkpoint, or that of the file where the user asks for it
  std::filesystem::path directory;
  bool resume = false;                    // the directory holds a run that is to go on
  std::optional<Checkpoint> checkpoint;   // the one to go on from, tensors not verified; empty: at the beginning
  std::vector<std::string> damage;        // found in later checkpoints than that, a clause each
  int64_t logged_step = 0;                // the latest in the run log as the plan was made: later ones are not known
  bool state_is_in_memory = false;        // ranks survived with it: no checkpoint is of a later step
  bool takes_over = false;                // a process of this job wrote into the directory, and may not have ended yet
  std::vector<std::string> changes;       // settings in which a resumed run differs from its beginning
  std::vector<std::string> effects = {};  // of these changes
  bool new_data = false;                  // RunRequest::new_data
};

// A folder for a run whose user names none. No other job that begins at the same time takes it.
class ClaimedDirectory {
 public:
  // Makes the folder `wanted`, or where there is one the first of wanted-2, wanted-3, ... Throws UserError.
  explicit ClaimedDirectory(const std::filesystem::path& wanted);
  // Removes what it has made where the run left nothing there.
  ~ClaimedDirectory();
  ClaimedDirectory(const ClaimedDirectory&) = delete;
  ClaimedDirectory& operator=(const ClaimedDirectory&) = delete;

  const std::filesystem::path& path() const { return directory_; }

 private:
  std::filesystem::path directory_;
  bool made_parent_ = false;
};

// Reads configuration and checkpoint; writes nothing. `resume` with a configuration and a directory in which no run has
// begun yet starts one, so that a scheduler can repeat one command line.
// Throws UserError: whatever is wrong with the configuration, a run directory that is not empty without `resume`,
// nothing to resume, no checkpoint that is not damaged where one is needed, and a setting that may not change within a
// run.
RunPlan plan_run(const RunRequest& request);

// Sets `checkpoint` to the newest one of the run that is not damaged, `damage`, and `logged_step`. Throws UserError
// where all are damaged, unless the run has its state in memory.
void take_newest_checkpoint(RunPlan& plan, bool has_memory = false);

// Rules for changing a key of the configuration when a run is resumed.
enum class ChangeOnResume {
  free,         // limits, evaluation, checkpoints, logging, device, threads, layout, policy, cluster, data's place
  by_override,  // the optimizer, batch sizes, clipping, precision: only by an override, and it is noted
  never,        // the model, the seed, the sequence length, how the data are cut
};
ChangeOnResume change_on_resume(const std::string& key);

// Compares the configuration of a run with the one it is resumed with, and returns one line for each change that is
// worth noting. A precision of `automatic` in `now` means that of `then`. Throws UserError naming the key and both
// values for a change that is not allowed; `overrides` as in RunRequest.
std::vector<std::string> check_changes(const RunConfig& then, const RunConfig& now,
                                       const std::vector<std::string>& overrides);

}  // namespace copus
