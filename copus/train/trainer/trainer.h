// Training, step by step: data, model, optimizer and progress, on one rank of a layout. It reads and writes no files
// and prints nothing. All ranks make a Trainer with the same arguments and call its functions in the same order.
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
#include "copus/model/memory/parameters.h"
#include "copus/orchestrator/controller/controller.h"
#include "copus/record/step_record.h"
#include "copus/schedule/schedule.h"
#include "copus/train/recording/step_clock.h"
#include "copus/train/recording/step_recorder.h"
#include "copus/train/state/checkpoint_transfer.h"
#include "copus/train/state/state_hash.h"
#include "copus/train/state/surviving_state.h"
#include "copus/train/step/obstacle.h"
#include "copus/train/step/probe_plan.h"
#include "copus/train/step/rank_model.h"
#include "copus/train/step/seconds_by_rank.h"
#include "copus/train/step/step_agreement.h"
#include "copus/train/step/step_completion.h"
#include "copus/train/step/training_state.h"
#include "copus/train/switch/relayout.h"
#include "copus/train/trainer/modelled_job.h"

namespace copus {

class SwitchPhases;

// Returns the reason to stop, if any. Every rank is asked. Rank 0's answer counts for all, and so does that of any rank
// that received a signal (agree_on_stop).
using StopQuestion = std::function<StopReason()>;

// The number of held-out samples that an evaluation reads.
int64_t samples_of_evaluation(const RunConfig& config, const Dataset& dataset);

class Trainer {
 public:
  // Makes a model with fresh weights. `config` names the precision (not automatic). `configuration` is the one to begin
  // in; it must be feasible and have as many ranks as `world`. The other constructor takes it from `config`. Keeps
  // references to `dataset` and `world`. `processes`: those of the ranks, if the training state must survive the
  // failure of some of them (leave). `machines`: those of the ranks, as in an Epoch. Throws UserError if the device or
  // the learning rate schedule is not available.
  Trainer(const RunConfig& config, const Configuration& configuration, const Dataset& dataset, at::Device device,
          World& world, const std::vector<int64_t>& processes = {}, const std::vector<int64_t>& machines = {});
  Trainer(const RunConfig& config, const Dataset& dataset, at::Device device, World& world);
  // Continues from state at rest (regroup.h), whose ranks are those of `world`, once publish_weights() was called on
  // all of them. Waits for no other rank.
  Trainer(const RunConfig& config, const Dataset& dataset, at::Device device, World& world, SurvivingState state);
  void publish_weights();

  // Call between two steps when all ranks have loaded their part of the state in this epoch of the job. From then on,
  // processes that never held state can continue from it.
  void keep_record(int64_t epoch);
  // The arena that holds the state; null if the state does not survive.
  const StateArena* arena() const { return survives_ ? survives_->arena.get() : nullptr; }

  // Hands over the training state before `world` ends: between two steps, or after a RankFailure that interrupted
  // anything. This trainer cannot be used afterwards. Empty if the state does not survive.
  std::optional<SurvivingState> leave();

  // Replaces the fresh weights by those of a model file with the same parameters.
  void load(const std::map<std::string, TensorView, std::less<>>& weights);

  // Continues from a checkpoint in the trainer's own configuration, whatever configuration it was written in. If the
  // layout differs at most in p, v, schedule, ZeRO and recompute, and the batches are the same, later steps are bitwise
  // those of the run that wrote it. Throws UserError, naming the field and both values, if seed, sequence length or
  // data differ from the checkpoint's, and for missing tensors. A trainer that takes new data reads them from their
  // beginning.
  void restore(const Checkpoint& checkpoint, bool takes_new_data = false);
  // Like restore(), for a branch. It trains on the samples that follow `skipped_samples` after the run's next one. Its
  // first updates allow for moments of another batch, as after a switch.
  void branch_from(const Checkpoint& checkpoint, int64_t skipped_samples);

  // Continues from the state of another trainer in the same layout, which does not change, as branch_from() does from a
  // checkpoint.
  void branch_from(const Trainer& trunk, int64_t skipped_samples);
  // What prevents another trainer in this layout beside this one: some rank has no memory for a second copy of the
  // state and a step. Every rank calls it, and gets the same answer.
  std::optional<Obstacle> obstacle_to_branch(int64_t global_batch) const;

  // Makes one step: forward and backward of this rank's share of the global batch in micro-batches, reduction,
  // clipping, the optimizer's update. A step whose loss or gradient norm is not finite changes no weight and counts as
  // skipped. Throws UserError after max_skipped_in_a_row such steps. Also throws it for a step that does not fit into
  // memory, after which this trainer cannot be used. The record is the same on all ranks.
  StepRecord step(const StopQuestion& stop = {});

  // Which shard, not yet here, keeps the next step's samples from being read on this machine, and why. Empty: none
  // does.
  std::optional<std::string> missing_shard() const;
  // The number of shards that the next step reads, and how many bytes of them are missing here.
  int64_t shards_of_next_step() const;
  int64_t missing_shard_bytes() const;

  // The configuration that steps run in: global batch, micro-batch and layout.
  const Configuration& configuration() const { return state_.configuration; }

  // Announces a switch, between two steps and on rank 0 only. The next step passes it to all ranks, which then begin to
  // prepare. They switch at the boundary after step intent.commit_after_step, or after that next step if it is later.
  // Announce a switch only after the previous one has been reported.
  void announce(const SwitchIntent& intent);

  // Withdraws an announcement that no step has passed to the other ranks yet.
  void withdraw() { announced_.reset(); }

  // Announces the factor on the schedule's learning rate, between two steps and on rank 0 only. All ranks use it from
  // the next step's update on, until another factor is announced or a switch brings its own. The initial factor is the
  // one that [optimizer] gives for the batch (initial_rate_factor).
  void announce_rate_factor(double factor);

  // Makes the switch that is due. All ranks call it after every step. Returns its outcome; empty if none was due. The
  // outcome is the same on all ranks, except that each rank has its own pause if the layout did not change. The pause
  // counts in state().elapsed_seconds.
  std::optional<SwitchReport> switch_if_due();

  // Records that training paused for `seconds` before the next step.
  void add_pause(double seconds) { clock_.add_pause(seconds); }

  // Counts seconds for which training stood still between two steps. All ranks call it with the same number.
  void spend(double seconds);
  // As StepCompletion::learn, on all ranks.
  void learn(const std::vector<MeasuredCriticalBatch>& critical_batches) { completion_.learn(critical_batches); }

  // Sets whether steps measure the gradient noise scale, from the next one on; initially as noise_scale.enabled says.
  // This changes neither losses nor weights, except for rounding in steps that are split in two to measure it
  // (plan_probe).
  void measure_noise(bool on) { measures_noise_ = on; }

  // Keeps the events of the next step.
  void trace_next_step() { trace_next_step_ = true; }
  // Events of the traced steps on this rank.
  const std::vector<TimelineEvent>& events() const { return recorder_.events(); }
  // Sets, with the same value on all ranks, whether rank 0 gathers how long each rank computes; initially off.
  void gather_seconds(bool on) { gathers_seconds_ = on; }
  // Gathers these seconds now, on all ranks. Otherwise that happens every straggler_window steps and before a change of
  // layout.
  void gather_seconds_now() { seconds_.gather(world_); }
  // On rank 0, the steps gathered since the last call. The seconds of a step are split by part, and cover the time from
  // the previous step's update until just before its own.
  std::vector<StepSeconds> take_seconds() { return seconds_.take(); }

  // The mean held-out loss per token, in nats, the same on all ranks and in all layouts of equal tensor parallelism. It
  // reads at most evaluate.max_batches micro-batches of the size in the run's configuration (Dataset::held_out_parts).
  // Empty without held-out data, or if there was a reason to stop, which is checked before every round of
  // micro-batches.
  std::optional<HeldOutLoss> evaluate(const StopQuestion& stop);
  std::optional<double> held_out_loss(const StopQuestion& stop);

  // The reason to stop that all ranks agreed on in the latest step or evaluation.
  StopReason stop_reason() const { return stop_reason_; }

  // Plan a checkpoint in the current layout, and send its tensors to the ranks that write them (checkpoint_transfer.h).
  // restore() also needs state(), as JSON.
  CheckpointPlan plan_checkpoint(const CheckpointLimits& limits = {}) const;
  void hand_over_state(const CheckpointPlan& plan, const TensorSink& sink);

  // Whether a limit of the run is reached.
  bool finished() const;

  // The fraction of the run that is done, in [0, 1], and the remaining seconds of training at the pace so far.
  double share_done() const;
  double seconds_left() const;

  // A hash of the whole training state, the same on all ranks. Every rank calls it.
  StateHash hash_of_state() const;
  // Throws InternalError, on all ranks, unless the state is consistent and, if `before` is given, has not changed since
  // then. Every rank calls it.
  void check_state(const std::optional<StateHash>& before) const;

  const TrainingState& state() const { return state_; }
  at::Device device() const { return device_; }
  // The record of the latest step. Empty if the training state does not survive failures, or before the first step.
  std::optional<StepRecord> latest_record() const { return survives_ ? survives_->record : std::nullopt; }
  // Waits until the weights of the latest update have been gathered.
  const ParameterStore& parameters() const { return whole_parameters(); }
  ParameterStore& parameters() { return whole_parameters(); }

 private:
  // A switch that all ranks have heard of.
  struct PendingSwitch {
    SwitchIntent intent;
    std::optional<Obstacle> refusal;                 // by every rank
    double opening_seconds = 0;                      // seconds for which training paused to connect groups
    std::future<PreparedRelayout> preparation = {};  // only for a change of layout
  };

  // The results of a step on this rank before the ranks agree, apart from the gradients in the main buffers: the losses
  // of its micro-batches, as the executor returns them, and the squared norms of smaller batches that have been read so
  // far.
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
  std::optional<Obstacle> lack_of(double bytes, const char* what) const;
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
  Configuration executed_;  // what the ranks execute: configuration() or, on the modelled clock, its substitute
  StateMover mover_;
  std::unique_ptr<RankModel> model_;
  Schedule schedule_;
  Schedule split_schedule_;                      // of a step that is split in two; set only if steps may be split
  std::optional<SwitchIntent> announced_;        // on rank 0: a switch that the other ranks have not heard of yet
  std::optional<double> announced_rate_factor_;  // on rank 0: a factor that the other ranks have not heard of yet
  std::optional<PendingSwitch> pending_;
  StopReason stop_reason_ = StopReason::none;
  bool trace_next_step_ = false;
  bool measures_noise_;
  bool gathers_seconds_ = false;
  SecondsByRank seconds_;
  std::optional<SurvivingState> survives_;  // its training state may be outdated; leave() updates it from state_
};

// Returns what `body` returns for a trainer, which is destroyed at the end. If `body` throws, the trainer is leaked on
// purpose: the process is about to end, and communication that is under way must not lose its buffers.
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
