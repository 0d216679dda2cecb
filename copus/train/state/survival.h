// Observes the steps and moves of one rank, and keeps what the remaining ranks need to complete them after a failure
// (surviving_state.h). Its functions do nothing if the training state of the job does not survive failures.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "copus/train/state/surviving_state.h"

namespace copus {

class Survival {
 public:
  // The state does not survive, unless keep() is called.
  Survival() = default;
  // Continues from state that was kept.
  explicit Survival(SurvivingState state);

  // Keeps the state `mine` of this rank, which lies in `arena`. `journal`: zeroed memory in the arena.
  void keep(std::shared_ptr<StateArena> arena, at::Tensor journal, std::vector<BucketState> mine);

  bool is_on() const { return kept_.has_value(); }
  // Null if the state does not survive.
  const StateArena* arena() const { return kept_ ? kept_->arena.get() : nullptr; }
  // The record of the latest step. Empty if the state does not survive, or before the first step.
  std::optional<StepRecord> latest_record() const { return kept_ ? kept_->record : std::nullopt; }
  // This rank's part of the state. Only if the state survives.
  const std::vector<BucketState>& mine() const { return kept_->at_rest.mine; }
  void release_gradients();

  // As Trainer::learn.
  void learn(const std::vector<MeasuredCriticalBatch>& critical_batches);

  // Sends the addresses of `state`, this rank's part of the state, to all ranks. Every rank calls this, even if the
  // job's state does not survive failures. `processes`: the process of each rank.
  void share_addresses(StateMover& mover, const std::vector<BucketState>& state, std::vector<int64_t> processes);

  // Call when all ranks have loaded their state in this epoch. From then on, records are written, so that processes
  // that never held state can continue the run.
  void begin_records(int64_t epoch, const TrainingState& training);
  void write_record(const TrainingState& training) const;
  // Records that update `number` is complete: the state was loaded.
  void mark_update_complete(int64_t number);

  // The parts of a step, in this order. decide(): this rank has the agreed numbers of step `step`, but other ranks may
  // not have them yet. confirm(): all ranks have these numbers, and no rank has changed a weight yet.
  void decide(int64_t step, const StepAgreement& agreed);
  void confirm(const StepAgreement& agreed, const TrainingState& training);
  // Returns the journal that the update must keep; null if it needs none.
  UpdateJournal* begin_update(const WeightUpdate& update);
  void end_step(const StepRecord& record, const TrainingState& training);

  // Shares the addresses after a move, as share_addresses(). `training`: the progress in the layout of `state`. Every
  // rank keeps the old layout until all ranks know that all have the new one.
  void end_move(StateMover& mover, const std::vector<BucketState>& state, const TrainingState& training,
                Communicator& everyone);

  // Hands over what was kept, with the progress of training. Afterwards the state does not survive.
  std::optional<SurvivingState> leave(const TrainingState& training);

 private:
  std::optional<SurvivingState> kept_;  // its progress of training may be outdated; leave() updates it
  std::optional<UpdateJournal> journal_;
};

}  // namespace copus
