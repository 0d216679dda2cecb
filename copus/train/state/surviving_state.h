// The state that a process keeps from one epoch of a job to the next, when ranks have failed, joined or left: the
// progress of training, and the training state, whose arenas outlive the processes that filled them.
//
// Half-done work can always be completed from this state. A step is decided once one rank has the numbers on which all
// ranks agree. A rank changes its weights only when all ranks have these numbers, and its journal records the progress
// of the update. A move is decided once one rank knows that all ranks have their part of the new layout. A rank
// releases the old layout only when all ranks know this. The remaining ranks can therefore find out what was decided,
// and complete it even for ended ranks.
//
// Whenever the progress of training changes, each rank writes it into its arena's record (state_record.h). If all
// processes have ended, new processes read the progress there.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "copus/comm/shared_memory/state_arena.h"
#include "copus/config/job_config.h"
#include "copus/model/memory/state_memory.h"
#include "copus/record/step_record.h"
#include "copus/train/optimizer/optimizer.h"
#include "copus/train/step/step_agreement.h"
#include "copus/train/step/training_state.h"
#include "copus/train/switch/relayout.h"

namespace copus {

// The state of a layout's ranks at a step boundary, with the progress of training.
struct StateAtRest {
  TrainingState training;         // its configuration has the layout of the state
  std::vector<BucketState> mine;  // this process's part; empty if it is not a rank
  StateInArenas all;
};

// The numbers of a step on which all ranks agree.
struct DecidedStep {
  int64_t step = 0;  // 0: none yet
  StepAgreement agreed;
};

struct SurvivingState {
  std::shared_ptr<StateArena> arena;  // null in a process that has just joined
  int64_t loaded_in = -1;             // epoch in which the state was loaded
  int64_t moves = 0;                  // number of moves into other layouts since then
  at::Tensor journal;                 // memory of this process's journal, in its arena
  StateAtRest at_rest;
  // The state after a move, complete on this rank. Has no addresses until all ranks have reported theirs.
  std::optional<StateAtRest> moved;
  DecidedStep decided;                 // latest decision that this process knows
  std::optional<WeightUpdate> update;  // latest update that this process has begun
  std::optional<StepRecord> record;    // of the latest step, if this process took part in it or received it
  // Measured by the run, for the records of steps (StepCompletion::learn). Empty: the configuration's rule applies.
  std::vector<MeasuredCriticalBatch> critical_batches;

  // Returns whether this process was a rank of the layout, and so knows the progress of training.
  bool holds_state() const { return !at_rest.mine.empty(); }
};

// Returns the journal of an update in this memory.
inline UpdateJournal journal_in(const at::Tensor& memory) {
  return UpdateJournal({static_cast<std::byte*>(memory.data_ptr()), memory.nbytes()});
}

// Returns the journal's offset within the arena.
inline int64_t offset_of_journal(const SurvivingState& state) {
  return static_cast<const std::byte*>(state.journal.data_ptr()) - state.arena->mine();
}

}  // namespace copus
