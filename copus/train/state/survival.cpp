#include "copus/train/state/survival.h"

#include "copus/train/state/state_record.h"

namespace copus {

Survival::Survival(SurvivingState state) : kept_(std::move(state)), journal_(journal_in(kept_->journal)) {}

void Survival::keep(std::shared_ptr<StateArena> arena, at::Tensor journal, std::vector<BucketState> mine) {
  kept_.emplace();
  kept_->arena = std::move(arena);
  kept_->journal = std::move(journal);
  kept_->at_rest.mine = std::move(mine);
  journal_.emplace(journal_in(kept_->journal));
}

void Survival::share_addresses(StateMover& mover, const std::vector<BucketState>& state,
                               std::vector<int64_t> processes) {
  mover.settle(state, std::move(processes), kept_ ? offset_of_journal(*kept_) : -1);
  if (kept_) kept_->at_rest.all = mover.state_in_arenas();
}

void Survival::release_gradients() {
  if (!kept_) return;
  for (BucketState& bucket : kept_->at_rest.mine) bucket.gradient.reset();
}

void Survival::learn(const std::vector<MeasuredCriticalBatch>& critical_batches) {
  if (kept_) kept_->critical_batches = critical_batches;
}

void Survival::begin_records(int64_t epoch, const TrainingState& training) {
  if (!kept_) return;
  kept_->loaded_in = epoch;
  write_record(training);
}

void Survival::write_record(const TrainingState& training) const {
  if (kept_) copus::write_record(*kept_, training);
}

void Survival::mark_update_complete(int64_t number) {
  if (journal_) journal_->mark_complete(number);
}

void Survival::decide(int64_t step, const StepAgreement& agreed) {
  if (kept_) kept_->decided = {step, agreed};
}

void Survival::confirm(const StepAgreement& agreed, const TrainingState& training) {
  if (!kept_) return;
  kept_->decided.agreed = agreed;
  write_record(training);
}

UpdateJournal* Survival::begin_update(const WeightUpdate& update) {
  if (!kept_) return nullptr;
  kept_->update = update;
  return &*journal_;
}

void Survival::end_step(const StepRecord& record, const TrainingState& training) {
  if (!kept_) return;
  kept_->record = record;
  write_record(training);
}

void Survival::end_move(StateMover& mover, const std::vector<BucketState>& state, const TrainingState& training,
                        Communicator& everyone) {
  const std::vector<int64_t> processes = mover.state_in_arenas().processes;
  if (!kept_) return share_addresses(mover, state, processes);
  journal_->mark_complete(training.optimizer_steps);
  kept_->moved.emplace(StateAtRest{.training = training, .mine = state, .all = {}});
  mover.settle(state, processes, offset_of_journal(*kept_));
  kept_->moved->all = mover.state_in_arenas();
  everyone.barrier();
  kept_->at_rest = *std::exchange(kept_->moved, std::nullopt);
  ++kept_->moves;
  write_record(training);
}

std::optional<SurvivingState> Survival::leave(const TrainingState& training) {
  if (kept_) kept_->at_rest.training = training;
  journal_.reset();
  return std::exchange(kept_, std::nullopt);
}

}  // namespace copus
