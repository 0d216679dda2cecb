// A run's directory and what a person sees of the run, on the rank that writes both.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "copus/checkpoint/checkpoint.h"
#include "copus/data/dataset.h"
#include "copus/orchestrator/step_time_learner.h"
#include "copus/report/progress.h"
#include "copus/report/run_log.h"
#include "copus/report/tensorboard.h"
#include "copus/report/timeline.h"
#include "copus/train/adaptation.h"
#include "copus/train/run_control.h"
#include "copus/train/run_plan.h"
#include "copus/train/step_time_knowledge.h"
#include "copus/train/stop_request.h"
#include "copus/train/trainer.h"

namespace copus {

// What predicted steps begin with. An empty `controller`: nothing adapts; an empty `known`: nothing is predicted.
struct RunPredictions {
  std::optional<StepTimeKnowledge> known;
  std::optional<ControllerStart> controller;
};
// Throws UserError as knowledge_of_run and start_controller do.
RunPredictions prepare_predictions(const RunPlan& plan, int64_t after_step);

class RunOutput {
 public:
  RunOutput(const RunPlan& plan, const Trainer& trainer, RunPredictions predictions);

  void note(const std::string& line) { progress_.note(line); }
  // At the beginning, and at the end of a run that is complete or of one that is not.
  void introduce(const Dataset& dataset);
  void say_goodbye(const Trainer& trainer, const Dataset& dataset, std::optional<double> held_out_loss);
  void say_how_to_go_on(const Trainer& trainer, StopReason reason);

  // A step has ended. Decisions that are due are made.
  void add(StepRecord record, const Trainer& trainer);
  // What a decision or a command wants done, once.
  std::optional<SwitchIntent> take_intent();
  // A switch has come to its end.
  void add(const SwitchReport& report);
  // Does what people have asked for. `standing`: the run stands still meanwhile.
  void obey_commands(int64_t step, bool standing) { control_.look(step, standing); }
  bool pause_wanted() const { return control_.pause_wanted(); }

  void checkpoint(Snapshot snapshot);
  void timeline(const std::vector<RankTimeline>& ranks) { write_timeline(directory_ / "timeline.json", ranks); }

  // Ends the run: waits for the checkpoint, and writes summary and report.
  void finish(const Trainer& trainer, std::optional<double> held_out_loss, const std::string& ended);

 private:
  void add_to_tensorboard(const StepRecord& record);
  void add_scalar(const char* tag, int64_t step, double value);

  const RunPlan& plan_;
  const RunConfig& config_;
  std::filesystem::path directory_;
  CheckpointWriter checkpoints_;  // before the log: it makes sure that no other process writes into this run
  RunLog log_;
  std::optional<TensorBoardWriter> tensorboard_;
  Progress progress_;
  std::optional<StepTimeKnowledge> known_;
  std::optional<StepTimeLearner> learner_;  // of a run that does not adapt
  std::optional<Adaptation> adaptation_;
  RunControl control_;
};

}  // namespace copus
