// A run's directory and the progress that the user sees, on the rank that writes both.
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

// The file that holds what a run has learned about step times.
std::filesystem::path profile_path(const RunPlan& plan);
// The folder of a run's checkpoints.
std::filesystem::path checkpoints_path(const RunPlan& plan);

class RunOutput {
 public:
  // Makes the run directory if there is none, and locks it against other processes. A resumed run keeps the log up to
  // step `resumed_after`. Throws UserError if the directory holds later work that the run would overwrite: a checkpoint
  // of a later step, or steps in the log that the plan did not know of.
  RunOutput(const RunPlan& plan, std::optional<int64_t> resumed_after);

  void note(const std::string& line) { progress_.note(line); }
  // Show the user the beginning and the end of the run. `step_time` is the prediction of step times in words, and at
  // the end the error of the prediction; empty without a prediction.
  void introduce(const Dataset& dataset, const World& world, const std::optional<std::string>& step_time);
  void say_goodbye(const RunSummary& summary, const Trainer& trainer, const Dataset& dataset,
                   const std::optional<std::string>& step_time);
  void say_how_to_go_on(const Trainer& trainer, StopReason reason);

  // Log an event: a step, a decision, a switch.
  void add(const StepRecord& record, const Trainer& trainer);
  void add(const Decision& decision);
  void add(const SwitchReport& report);
  // Returns whether the step after which the run was resumed lacks an evaluation, because the run was stopped there.
  // The settings at that time decide whether it was due. `is_last`: the step is the run's last one, which always needs
  // an evaluation.
  bool owes_evaluation(bool is_last) const;
  // Logs the result of that evaluation.
  void add_owed_evaluation(const HeldOutLoss& loss);
  // Returns when the log of steps is durable on disk.
  void sync() { log_.sync(); }
  // Calls `write`, which writes a file that the run does not need. Ignores its error if the run directory is gone;
  // keep_directory() makes the directory again.
  void unless_gone(const std::function<void()>& write) const;

  // Checks whether somebody has deleted or moved the run directory, or files that the run needs to be resumed. If so,
  // makes the directory again with the log so far, and returns true. The checkpoints are lost. `has_more`: whether the
  // files of other objects in it exist; `put_back_more` makes these files again. If the directory cannot be made again,
  // it warns the user once, and the next call tries again.
  bool keep_directory(bool has_more, const std::function<void()>& put_back_more);

  // The folder of this run's checkpoints.
  CheckpointFolder& checkpoints() { return checkpoints_; }
  // Writes the learned step times.
  void add(const PerformanceProfile& profile);
  void timeline(const std::vector<RankTimeline>& ranks);
  // Writes shards.txt, a shard a line, unless it says the same already.
  void list_shards(const std::vector<std::string>& shards, int64_t needed);

  // The size of the input of this run's page so far, as a fraction of the largest input that a page may have.
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
  CheckpointFolder checkpoints_;  // before the log, since it makes sure that no other process writes into this run
  int64_t told_step_;  // the latest step that an earlier rank 0 of this job has logged, before the log is cut
  RunLog log_;
  std::optional<TensorBoardWriter> tensorboard_;
  Progress progress_;
  int64_t logged_step_ = 0;
  bool has_told_of_loss_ = false;
  std::string shard_list_;  // the content of shards.txt
};

}  // namespace copus
