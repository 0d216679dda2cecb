// Training, step by step: data, model, optimizer and progress, on one rank of a layout. It reads and writes no files
// and prints nothing. All ranks make a Trainer with the same arguments and call its functions in the same order.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "copus/checkpoint/checkpoint.h"
#include "copus/train/state/checkpoint_transfer.h"
#include "copus/train/state/survival.h"
#include "copus/train/step/obstacle.h"
#include "copus/train/switch/relayout.h"
#include "copus/train/trainer/gradient_source.h"
#include "copus/train/trainer/rank_training.h"
#include "copus/train/trainer/switcher.h"
#include "copus/train/trainer/training_step.h"

namespace copus {

class Trainer {
 public:
  // Makes a model with fresh weights. The precision in `config` must not be automatic. Training begins in
  // `configuration`, which must be feasible and have as many ranks as `world`; without it, in the configuration of
  // `config`. Keeps references to `dataset` and `world`. `processes`: the process of each rank, if the training state
  // must survive the failure of some ranks (leave). `machines`: the machine of each rank, as in an Epoch. Throws
  // UserError if the device or the learning rate schedule is not available.
  Trainer(const RunConfig& config, const Configuration& configuration, const Dataset& dataset, at::Device device,
          World& world, const std::vector<int64_t>& processes = {}, const std::vector<int64_t>& machines = {});
  Trainer(const RunConfig& config, const Dataset& dataset, at::Device device, World& world);
  // Continues from state at rest (regroup.h). The state must have the same ranks as `world`, and publish_weights() must
  // have been called on all of them. Does not wait for other ranks.
  Trainer(const RunConfig& config, const Dataset& dataset, at::Device device, World& world, SurvivingState state);
  void publish_weights() { training_.publish_moved_weights(); }

  // Call between two steps when all ranks have loaded their part of the state in this epoch of the job. From then on,
  // processes that never held state can continue from it.
  void keep_record(int64_t epoch);
  // The arena that holds the state; null if the state does not survive.
  const StateArena* arena() const { return survival_.arena(); }

  // Hands over the training state before `world` ends. Call this between two steps, or after a RankFailure at any
  // point. This trainer cannot be used afterwards. Empty if the state does not survive.
  std::optional<SurvivingState> leave();

  // Replaces the fresh weights by the weights of a model file with the same parameters.
  void load(const std::map<std::string, TensorView, std::less<>>& weights);

  // Continues from a checkpoint in the trainer's own configuration, whatever configuration it was written in. If the
  // layout differs at most in p, v, schedule, ZeRO and recompute, and the batches are the same, later steps are bitwise
  // equal to the steps of the run that wrote the checkpoint. Throws UserError if seed, sequence length or data differ
  // from the checkpoint's (the message names the field and both values), or if tensors are missing. A trainer that
  // takes new data reads them from their beginning.
  void restore(const Checkpoint& checkpoint, bool takes_new_data = false);
  // Like restore(), for a branch. The branch skips `skipped_samples` of the run's next samples and trains on those that
  // follow. Its first updates take into account that the moments belong to another batch, as after a switch.
  void branch_from(const Checkpoint& checkpoint, int64_t skipped_samples);

  // Like the function above, from the state of another trainer in the same layout. The other trainer does not change.
  void branch_from(const Trainer& trunk, int64_t skipped_samples);
  // Returns an obstacle if some rank lacks the memory for a second trainer in this layout, with its own state and
  // steps. Every rank calls this and gets the same answer.
  std::optional<Obstacle> obstacle_to_branch(int64_t global_batch) const;
  // Opens this trainer's groups again, after a branch has opened its own in their place. Every rank calls it.
  void require_groups() const;

  // Makes one step: forward and backward of this rank's share of the global batch in micro-batches, reduction,
  // clipping, the optimizer's update. A step whose loss or gradient norm is not finite changes no weight and counts as
  // skipped. Throws UserError after max_skipped_in_a_row such steps. Also throws it for a step that does not fit into
  // memory, after which this trainer cannot be used. The record is the same on all ranks.
  StepRecord step(const StopQuestion& stop = {});

  // The configuration that steps run in: global batch, micro-batch and layout.
  const Configuration& configuration() const { return training_.configuration(); }

  // Announces a switch, between two steps and on rank 0 only. The next step passes it to all ranks, which then begin to
  // prepare. They switch after step intent.commit_after_step, or after the step that passes the announcement if it is
  // later. Announce a switch only after the previous one has been reported.
  void announce(const SwitchIntent& intent) { switcher_.announce(intent); }

  // Withdraws an announcement that no step has passed to the other ranks yet.
  void withdraw() { switcher_.withdraw(); }

  // Announces the factor on the schedule's learning rate, between two steps and on rank 0 only. All ranks use it from
  // the next step's update on, until another factor is announced or a switch brings its own. The initial factor follows
  // from [optimizer] and the batch (initial_rate_factor).
  void announce_rate_factor(double factor) { step_.announce_rate_factor(factor); }

  // Makes the switch that is due. All ranks call it after every step. Returns its outcome; empty if none was due. The
  // outcome is the same on all ranks, except that each rank has its own pause if the layout did not change. The pause
  // counts in state().elapsed_seconds.
  std::optional<SwitchReport> switch_if_due() { return switcher_.commit_if_due(); }

  // Records that training paused for `seconds` before the next step.
  void record_pause(double seconds) { training_.clock.add_pause(seconds); }

  // Counts seconds for which training stood still between two steps. All ranks call it with the same number.
  void spend(double seconds);
  // As StepCompletion::learn, on all ranks.
  void learn(const std::vector<MeasuredCriticalBatch>& critical_batches) {
    step_.learn(critical_batches);
    survival_.learn(critical_batches);
  }

  // Sets whether steps measure the gradient noise scale, from the next one on; initially as noise_scale.enabled says.
  // This changes neither losses nor weights, except for rounding in steps that are split in two to measure it
  // (plan_probe).
  void measure_noise(bool on) { step_.measure_noise(on); }

  // Keeps the events of the next step.
  void trace_next_step() { step_.trace_next(); }
  // Events of the traced steps on this rank.
  const std::vector<TimelineEvent>& events() const { return training_.recorder.events(); }
  // Sets, with the same value on all ranks, whether rank 0 gathers how long each rank computes; initially off.
  void gather_seconds(bool on) { step_.gather_seconds(on); }
  // Gathers the ranks' computing seconds now, on all ranks. Otherwise they are gathered every straggler_window steps
  // and before a change of layout.
  void gather_seconds_now() { training_.seconds.gather(training_.world); }
  // Returns, on rank 0, the seconds of the steps gathered since the last call, by part. A step's seconds cover the time
  // from the previous step's update until just before its own.
  std::vector<StepSeconds> take_seconds() { return training_.seconds.take(); }

  // Evaluates the held-out data (evaluate_held_out).
  std::optional<HeldOutLoss> evaluate(const StopQuestion& stop);
  std::optional<double> held_out_loss(const StopQuestion& stop);

  // The reason to stop that all ranks agreed on in the latest step or evaluation.
  StopReason stop_reason() const { return training_.stop_reason; }

  // These functions plan a checkpoint in the current layout, and send its tensors to the ranks that write them
  // (checkpoint_transfer.h). A checkpoint must also contain state(), as JSON.
  CheckpointPlan plan_checkpoint(const CheckpointLimits& limits = {}) const;
  void hand_over_state(const CheckpointPlan& plan, const TensorSink& sink);

  // Whether a limit of the run is reached.
  bool finished() const;

  // The fraction of the run that is done, in [0, 1], and the remaining seconds of training at the pace so far.
  double share_done() const;
  double seconds_left() const;

  // A hash of the whole training state, the same on all ranks. Every rank calls it.
  StateHash hash_of_state() const { return training_.hash_of_state(); }
  // Throws InternalError, on all ranks, if the state is inconsistent or, if `before` is given, has changed since. Every
  // rank calls this.
  void check_state(const std::optional<StateHash>& before) const;

  const TrainingState& state() const { return training_.state; }
  at::Device device() const { return training_.device; }
  // The record of the latest step. Empty if the training state does not survive failures, or before the first step.
  std::optional<StepRecord> latest_record() const { return survival_.latest_record(); }
  // Waits until the weights of the latest update have been gathered.
  const ParameterStore& parameters() const { return training_.whole_parameters(); }
  ParameterStore& parameters() { return training_.whole_parameters(); }

 private:
  std::string needs_too_much_memory() const;

  StateMover mover_;
  RankTraining training_;
  Survival survival_;
  std::unique_ptr<GradientSource> gradients_;
  Switcher switcher_;
  TrainingStep step_;
};

// Calls `body` with a new trainer and returns its result; the trainer is then destroyed. If `body` throws, the trainer
// is leaked on purpose: the process is about to end, and communication that is under way must not lose its buffers.
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
