// The loop of a run on one rank: steps, evaluation, switches, pauses, checkpoints, the end. All ranks do the same work
// in the same order; rank 0 has additional tasks (run_leader.h).
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>

#include "copus/comm/job/member/membership.h"
#include "copus/comm/world.h"
#include "copus/data/dataset.h"
#include "copus/train/run/run.h"
#include "copus/train/run/run_checkpoints.h"
#include "copus/train/run/run_leader.h"
#include "copus/train/run/run_plan.h"
#include "copus/train/step/stop_request.h"
#include "copus/train/trainer/trainer.h"

namespace copus {

// The progress of a run besides its training state. After failures the remaining ranks continue from it.
struct PassedBoundary {
  std::optional<StepRecord> record = {};           // of the latest step; empty before the first one
  int64_t written = 0;                             // latest step that was logged and decided on
  std::optional<SwitchReport> last_switch = {};    // made after the latest step
  std::optional<RanksChanged> change = {};         // after the latest step, and not yet logged by rank 0
  std::optional<RunCalibration> calibration = {};  // begun after the latest step, and not yet logged by rank 0
  std::optional<int64_t> last_checkpoint = {};     // step of the latest checkpoint
  bool may_owe_evaluation = false;                 // whether just resumed from a checkpoint; the same on all ranks
  double longest_checkpoint = 0;                   // in seconds, since the state was loaded; 0: no checkpoint yet
  bool has_timeline = false;                       // whether the job has written its timeline; the same on all ranks
  // Start of the latest checkpoint; without one, start of the run.
  std::chrono::steady_clock::time_point checkpointed_at = std::chrono::steady_clock::now();
};

// Begins the run once all ranks have loaded its first state: rank 0 opens the run directory. Every rank calls it.
// `have_cores`: as set_up_process returns. `leader`: null on all ranks but 0. Returns what RunLoop continues from.
PassedBoundary begin_run(const RunPlan& plan, const Dataset& dataset, Trainer& trainer, World& world, bool have_cores,
                         RunLeader* leader);

class RunLoop {
 public:
  // `leader`: null on all ranks but 0. `membership`: null if ranks neither join nor leave.
  RunLoop(const RunPlan& plan, const Dataset& dataset, Trainer& trainer, World& world, const StopRequest& stop,
          RunLeader* leader, Membership* membership);

  // Trains until the run is complete or stopped. Returns nothing if ranks join or leave before that. `passed` tells
  // which work after the latest step is already done; the rest is done first. Keeps `passed` up to date.
  std::optional<RunEnd> until_end(PassedBoundary& passed);

 private:
  std::optional<RunEnd> loop_until_end(PassedBoundary& passed);
  void at_boundary(StepRecord record, PassedBoundary& passed);
  StepRecord step(PassedBoundary& passed);
  void note_progress();
  void note_change(PassedBoundary& passed);
  void make_switch(PassedBoundary& passed);
  void stand_still(PassedBoundary& passed);
  void calibrate(PassedBoundary& passed);
  void note_lost_calibration(PassedBoundary& passed);
  void share_critical_batches();
  bool await_shards(PassedBoundary& passed);
  void list_shards();
  StopReason reason_to_stop(double longest_step = 0) const;
  bool is_calibration_due() const;
  double seconds_to_draw() const;
  bool is_checkpoint_overdue(const PassedBoundary& passed) const;
  StopReason reason_to_halt(const PassedBoundary& passed) const;
  bool gives_up_checkpoint();
  void note_given_up(PassedBoundary& passed);
  StopReason end_reason() const;
  bool is_sound() const;
  std::optional<HeldOutLoss> evaluate();
  void evaluate_what_is_owed();
  void complete_checkpoint_before(const UserError& divergence);
  void checkpoint(PassedBoundary& passed);
  void checkpoint_by_time(PassedBoundary& passed);
  void checkpoint_again(PassedBoundary& passed);
  void keep_last_checkpoint(PassedBoundary& passed);
  bool lacks_timeline(const PassedBoundary& passed) const;
  void gather_timeline(PassedBoundary& passed);
  RunEnd finish(PassedBoundary& passed);

  const RunPlan& plan_;
  const Dataset& dataset_;
  Trainer& trainer_;
  World& world_;
  const StopRequest& stop_;
  RunLeader* const leader_;
  Membership* const membership_;
  std::optional<HeldOutLoss> held_out_loss_;            // of the weights after the latest step
  StopReason stopped_while_paused_ = StopReason::none;  // or while branches trained
  bool has_advanced_ = false;                           // whether progress has been reported to the launcher
  double longest_step_ = 0;                             // in s, on the real clock
  int64_t steps_ = 0, traced_ = 0;                      // of this process only
  std::optional<RunCheckpoints> checkpoints_;
  std::optional<std::chrono::steady_clock::time_point> regroup_wanted_since_;  // on rank 0
  bool diverged_ = false;
};

}  // namespace copus
