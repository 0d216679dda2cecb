// A run's directory, and the progress shown to the user, on the rank that writes both.
#pragma once

#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "copus/checkpoint/checkpoint_folder.h"
#include "copus/data/dataset.h"
#include "copus/orchestrator/controller/controller.h"
#include "copus/report/files/performance_profile.h"
#include "copus/report/files/run_summary.h"
#include "copus/report/logs/run_log.h"
#include "copus/report/progress/progress.h"
#include "copus/report/viewers/tensorboard.h"
#include "copus/report/viewers/timeline.h"
#include "copus/train/run/run_plan.h"
#include "copus/train/step/stop_request.h"
#include "copus/train/step/training_state.h"
#include "copus/train/trainer/trainer.h"

namespace copus {

// Returns the path of the file with learned step times.
std::filesystem::path profile_path(const RunPlan& plan);
// Returns the folder of a run's checkpoints.
std::filesystem::path checkpoints_path(const RunPlan& plan);

class RunOutput {
 public:
  // Creates the run directory if it does not exist, and locks it against other processes. A resumed run keeps the log
  // up to step `resumed_after`. Throws UserError if the directory has later work that the run would overwrite: a
  // checkpoint of a later step, or logged steps that the plan did not know of.
  RunOutput(const RunPlan& plan, std::optional<int64_t> resumed_after);

  void note(const std::string& line) { progress_.note(line); }
  // These functions print what a user should know at the beginning and at the end of the run. `step_time`: describes
  // the prediction of step times, and at the end its error; empty without predictions.
  void introduce(const Dataset& dataset, const World& world, const std::optional<std::string>& step_time);
  void say_goodbye(const RunSummary& summary, const Trainer& trainer, const Dataset& dataset,
                   const std::optional<std::string>& step_time);
  void say_how_to_go_on(const Trainer& trainer, StopReason reason);

  // Each logs an event: a step, a decision, a switch.
  void add(const StepRecord& record, const Trainer& trainer);
  void add(const Decision& decision);
  void add(const SwitchReport& report);
  // Returns whether the evaluation after the step from which the run was resumed is missing, because the run stopped
  // before it. `is_last`: the step is the run's last one, which always needs an evaluation.
  bool owes_evaluation(bool is_last) const;
  // Logs the result of that evaluation.
  void add_owed_evaluation(const HeldOutLoss& loss);
  // Returns once the log of steps is durable on disk.
  void sync() { log_.sync(); }
  // Calls `write`, which writes a file that the run can do without. Ignores errors if the run directory is gone,
  // because keep_directory() will create it again.
  void unless_gone(const std::function<void()>& write) const;

  // Checks whether the run directory, or files needed to resume, have been deleted or moved. If so, creates the
  // directory again with the log so far, and returns true; checkpoints are lost. `has_more`: whether the files that
  // other objects keep there still exist; `put_back_more` creates those files again. If the directory cannot be
  // created, warns once, and tries again in the next call.
  bool keep_directory(bool has_more, const std::function<void()>& put_back_more);

  // Returns the folder of this run's checkpoints.
  CheckpointFolder& checkpoints() { return checkpoints_; }
  // Reports that an old checkpoint could not be deleted, once until a deletion succeeds again.
  void note_undeleted_checkpoint();
  // Writes the learned step times.
  void add(const PerformanceProfile& profile);
  void timeline(const std::vector<RankTimeline>& ranks);
  // Writes shards.txt, one shard per line, if its contents have changed.
  void list_shards(const std::vector<std::string>& shards, int64_t needed);

  // Returns the size of this run's input for its page so far, relative to the largest possible input.
  double page_share() const;
  // Ends the run: writes the summary and, if `draws_page`, the page. Returns the summary.
  RunSummary finish(const Trainer& trainer, const std::optional<HeldOutLoss>& loss, const std::string& ended,
                    bool draws_page);

 private:
  std::optional<int64_t> first_unless_more_is_there(std::optional<int64_t> resumed_after) const;
  void check_directory_is_ours() const;
  void tell_of_missing_lines();
  TrainingState resumed_state() const;
  int64_t samples_before(const Dataset& dataset) const;
  void note_new_data(const Dataset& dataset);
  void add_to_tensorboard(const StepRecord& record);
  void add_held_out_losses(int64_t step, const HeldOutLoss& loss);
  void add_scalar(const char* tag, int64_t step, double value);

  const RunPlan& plan_;
  const RunConfig& config_;
  std::filesystem::path directory_;
  CheckpointFolder checkpoints_;  // before the log, because it keeps other processes out of this run
  int64_t told_step_;             // latest step that an earlier rank 0 of this job has logged, before the log is cut
  RunLog log_;
  std::optional<TensorBoardWriter> tensorboard_;
  Progress progress_;
  int64_t logged_step_ = 0;
  bool has_told_of_loss_ = false;
  bool has_told_of_undeleted_ = false;
  std::string shard_list_;  // contents of shards.txt
};

}  // namespace copus
