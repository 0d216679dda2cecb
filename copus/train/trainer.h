// Training, step by step: data, model and optimizer and their progress, on one rank of a layout. Neither reads nor
// writes files, and shows nothing. All ranks make a Trainer alike and call its functions in the same order.
#pragma once

#include <functional>
#include <future>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "copus/checkpoint/checkpoint.h"
#include "copus/comm/world.h"
#include "copus/config/run_config.h"
#include "copus/data/dataset.h"
#include "copus/model/parameters.h"
#include "copus/orchestrator/controller.h"
#include "copus/record/step_record.h"
#include "copus/schedule/schedule.h"
#include "copus/train/checkpoint_transfer.h"
#include "copus/train/modelled_job.h"
#include "copus/train/obstacle.h"
#include "copus/train/probe_plan.h"
#include "copus/train/rank_model.h"
#include "copus/train/relayout.h"
#include "copus/train/seconds_by_rank.h"
#include "copus/train/state_hash.h"
#include "copus/train/step_agreement.h"
#include "copus/train/step_clock.h"
#include "copus/train/step_completion.h"
#include "copus/train/step_recorder.h"
#include "copus/train/surviving_state.h"
#include "copus/train/training_state.h"

namespace copus {

class SwitchPhases;

// Returns the reason to stop, if any. Asked on every rank; rank 0's answer counts for all, and that of any rank that
// was told to stop (agree_on_stop).
using StopQuestion = std::function<StopReason()>;

// The number of held-out samples that an evaluation reads.
int64_t samples_of_evaluation(const RunConfig& config, const Dataset& dataset);

class Trainer {
 public:
  // Makes a model with fresh weights. `config` names the precision (not automatic). `configuration`, feasible and for
  // as many ranks as `world` has, is the one to begin in; without it that is the one in `config`. Refers to `dataset`
  // and `world` for its whole life. `processes`: those of the ranks, where the training state is to survive the failure
  // of some of them (leave), and `machines` those that the ranks are on, as in an Epoch. Throws UserError when the
  // device or the learning rate schedule cannot be had.
  Trainer(const RunConfig& config, const Configuration& configuration, const Dataset& dataset, at::Device device,
          World& world, const std::vector<int64_t>& processes = {}, const std::vector<int64_t>& machines = {});
  Trainer(const RunConfig& config, const Dataset& dataset, at::Device device, World& world);
  // Goes on from state that is at rest (regroup.h), whose ranks are those of `world`, once publish_weights() was called
  // on all of them. Waits for nobody.
  Trainer(const RunConfig& config, const Dataset& dataset, at::Device device, World& world, SurvivingState state);
  void publish_weights();

  // Says, between two steps, that all ranks have their part of the state, which was loaded in this epoch of the job:
  // from now on processes that were never there can go on from it.
  void keep_record(int64_t epoch);
  // The arena that the state lies in; null where it does not survive.
  const StateArena* arena() const { return survives_ ? survives_->arena.get() : nullptr; }

  // Gives away the training state, before `world` ends: between two steps, or after a RankFailure, whatever it
  // interrupted. This trainer is of no more use. Empty where the state does not survive.
  std::optional<SurvivingState> leave();

  // Replaces the fresh weights by those of a model file with the same parameters.
  void load(const std::map<std::string, TensorView, std::less<>>& weights);

  // Continues from a checkpoint in the trainer's own configuration, whatever configuration it was written in. In a
  // layout that differs from it in p, v, schedule, ZeRO and recompute alone, or not at all, and with the same batches,
  // later steps are bitwise those of the run that wrote it. Throws UserError naming the field and both values when
  // seed, sequence length or data are not the checkpoint's, and for missing tensors. A trainer that takes new data
  // reads those from their beginning.
  void restore(const Checkpoint& checkpoint, bool takes_new_data = false);
  // The same, for a branch: it trains on the samples that come `skipped_samples` after those that the run would have
  // read next, and its first updates allow for moments of another batch, as after a switch.
  void branch_from(const Checkpoint& checkpoint, int64_t skipped_samples);

  // Makes one step: forward and backward of this rank's share of the global batch in micro-batches, reduction,
  // clipping, AdamW. A step whose loss or gradient norm is not finite changes no weight and is counted as skipped.
  // Throws UserError after max_skipped_in_a_row of them, and for a step that does not fit into memory, after which this
  // trainer is of no more use. The record is the same on all ranks.
  StepRecord step(const StopQuestion& stop = {});

  // The configuration that steps run in: global batch, micro-batch and layout.
  const Configuration& configuration() const { return state_.configuration; }

  // Announces a switch, between two steps and on rank 0 alone. The next step tells all ranks, which prepare from then
  // on. They switch at the boundary after step intent.commit_after_step, or after that next step if this boundary has
  // passed by then. Announce one switch at a time: the one before has been reported.
  void announce(const SwitchIntent& intent);

  // Takes back an announcement that no step has told the other ranks of.
  void withdraw() { announced_.reset(); }

  // Announces the factor on the schedule's learning rate, between two steps and on rank 0 alone. All ranks count with
  // it from the next step's update on, until another is announced or a switch brings its own. At first it is the one
  // that [optimizer] gives for the batch (initial_rate_factor).
  void announce_rate_factor(double factor);

  // Makes the switch that is due; call it after every step on all ranks. Returns its outcome, the same on all ranks
  // except for the pause of a switch that left the layout as it was, which is each rank's own. Empty where none was
  // due. The pause counts in state().elapsed_seconds.
  std::optional<SwitchReport> switch_if_due();

  // Notes that training has stood still for so many seconds before the next step.
  void add_pause(double seconds) { clock_.add_pause(seconds); }

  // Sets whether steps measure the gradient noise scale, from the next one on; at first as noise_scale.enabled says.
  // This changes neither losses nor weights, except by rounding in the steps that are cut in two for it (plan_probe).
  void measure_noise(bool on) { measures_noise_ = on; }

  // Keeps the events of the next step.
  void trace_next_step() { trace_next_step_ = true; }
  // Events of the traced steps on this rank.
  const std::vector<TimelineEvent>& events() const { return recorder_.events(); }
  // Sets, alike on all ranks, whether rank 0 gathers how long each rank computes; at first it does not.
  void gather_seconds(bool on) { gathers_seconds_ = on; }
  // Gathers them now, on all ranks; else that comes every straggler_window steps and before a change of layout.
  void gather_seconds_now() { seconds_.gather(world_); }
  // On rank 0, the steps gathered since the last call. The seconds of a step are by part, from the update of the step
  // before it until just before its own.
  std::vector<StepSeconds> take_seconds() { return seconds_.take(); }

  // The mean loss of a token of the held-out data, in nats, over at most as many samples as evaluate.max_batches
  // micro-batches of the size that the run was given have (Dataset::held_out_parts); the same on all ranks and in all
  // layouts of equal tensor parallelism. Empty when there is no held-out data, or when there was a reason to stop
  // (asked before every round of micro-batches).
  std::optional<HeldOutLoss> evaluate(const StopQuestion& stop);
  std::optional<double> held_out_loss(const StopQuestion& stop);

  // The reason to stop that all ranks have agreed on in the latest step or evaluation.
  StopReason stop_reason() const { return stop_reason_; }

  // Plan a checkpoint in the current layout, and hand its tensors over to the ranks that write them
  // (checkpoint_transfer.h). All else that restore() needs is state(), as JSON.
  CheckpointPlan plan_checkpoint(const CheckpointLimits& limits = {}) const;
  void hand_over_state(const CheckpointPlan& plan, const TensorSink& sink);

  // Tells whether a limit of the run is reached.
  bool finished() const;

  // The share of the run that is done, in [0, 1], and the seconds of training left at the pace so far.
  double share_done() const;
  double seconds_left() const;

  // A hash of the whole training state, the same on all ranks, which all call it.
  StateHash hash_of_state() const;
  // Throws InternalError, on all ranks alike, unless the state is whole and, where that is known, what it was when
  // `before` was taken. Every rank calls it.
  void check_state(const std::optional<StateHash>& before) const;

  const TrainingState& state() const { return state_; }
  // The record of the latest step, where the training state survives failures and there was one since the run began.
  std::optional<StepRecord> latest_record() const { return survives_ ? survives_->record : std::nullopt; }
  // Waits until the weights that the latest update has changed are whole.
  const ParameterStore& parameters() const { return whole_parameters(); }
  ParameterStore& parameters() { return whole_parameters(); }

 private:
  // A switch that all ranks know of.
  struct PendingSwitch {
    SwitchIntent intent;
    std::optional<Obstacle> refusal;                 // to every rank
    double opening_seconds = 0;                      // for which training stood still to connect groups
    std::future<PreparedRelayout> preparation = {};  // only for a change of layout
  };

  // Gradients of a step, not yet agreed on: the losses of its micro-batches, as the executor returns them, and the
  // squared norms of smaller batches that have been read already.
  struct StepGradients {
    std::vector<at::Tensor> losses;
    ExactSum small_squared_norms;
  };

  ParameterStore& whole_parameters() const;
  void plan_steps();
  void prepare_switch(const SwitchIntent& intent);
  std::optional<Obstacle> obstacle_to(const Configuration& configuration);
  std::optional<Obstacle> open_groups(const Configuration& configuration);
  double step_bytes(const Configuration& configuration) const;
  RelayoutRequest request_to(const ParallelStrategy& strategy) const;
  TrainingState state_after(const SwitchIntent& intent) const;
  void change_configuration(const SwitchIntent& intent);
  void settle_after_move(const std::vector<BucketState>& state, const TrainingState& training);
  void change_layout(PendingSwitch& pending, SwitchPhases& phases, SwitchReport& report);
  int64_t move(std::vector<BucketState>& state, const RelayoutRequest& request, const PreparedRelayout& prepared,
               SwitchPhases& phases);
  void release_model(std::vector<BucketState>& state);
  std::optional<Obstacle> assemble(const Configuration& configuration, std::vector<BucketState>& state,
                                   const std::vector<BucketOffsets>& buckets, SwitchPhases& phases);
  std::optional<Obstacle> rehearse(const Configuration& configuration) const;
  void settle(const std::vector<BucketState>& state, const std::vector<int64_t>& processes);
  void write_record() const;
  int64_t tokens_per_step() const { return configuration().global_batch * config_.train.sequence_length; }
  StepRecord compute_step(const StopQuestion& stop);
  std::string needs_too_much_memory() const;
  StepAgreement accumulate_gradients(const ProbePlan& plan, const StopQuestion& stop);
  StepGradients compute_gradients(const ProbePlan& plan, double loss_scale);
  std::vector<MicroBatch> read_micro_batches(const ProbePlan& plan, double loss_scale) const;
  MicroBatch to_micro_batch(const Batch& batch, int64_t sequences, double loss_scale) const;
  void update_weights(const WeightUpdate& update);

  // On the modelled clock (trainer_modelled.cpp):
  StepGradients compute_modelled_gradients(const ProbePlan& plan, double loss_scale);
  void run_modelled(const std::vector<MicroBatch>& micro_batches, ProbeSource source, StepGradients& gradients);
  std::vector<MicroBatch> read_share(ProbeSource source, const ProbePlan& plan, int64_t share, int64_t samples,
                                     double loss_scale) const;
  void make_modelled_switch(const SwitchIntent& intent, SwitchReport& report);

  RunConfig config_;
  const Dataset& dataset_;
  at::Device device_;
  World& world_;
  StepRecorder recorder_;
  StepClock clock_;
  StepCompletion completion_;
  TrainingState state_;
  std::optional<ModelledJob> modelled_;  // only on the modelled clock
  Configuration executed_;               // what the ranks execute: configuration(), or what stands for it
  StateMover mover_;
  std::unique_ptr<RankModel> model_;
  Schedule schedule_;
  Schedule split_schedule_;                      // of a step that is cut in two; set only where one can be
  std::optional<SwitchIntent> announced_;        // on rank 0: the switch that the others do not know of yet
  std::optional<double> announced_rate_factor_;  // likewise
  std::optional<PendingSwitch> pending_;
  StopReason stop_reason_ = StopReason::none;
  bool trace_next_step_ = false;
  bool measures_noise_;
  bool gathers_seconds_ = false;
  SecondsByRank seconds_;
  std::optional<SurvivingState> survives_;  // its training state is state_, and is brought up to date when it leaves
};

// Returns what `body` returns for a trainer, which is destroyed at the end. If `body` throws, the trainer is left
// alive: the process ends then, and communication that is still under way must not find its buffers gone.
template <class Body>
auto with_trainer(std::unique_ptr<Trainer> trainer, const Body& body) {
  try {
    return body(*trainer);
  } catch (...) {
    [[maybe_unused]] const Trainer* kept = trainer.release();
    throw;
  }
}

}  // namespace copus
