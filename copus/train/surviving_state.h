// What a process takes from one epoch of a job into the next, when ranks have failed, come or gone: where training
// stands, and the training state, which lies in arenas that outlive the processes that filled them.
//
// Nothing is half done in it. A step is decided once one rank has the numbers that all ranks agree on; only when all
// have them does a rank change its weights, and its journal tells how far it has come. A move is decided once one rank
// knows that all have their part of the new layout; only when all know does a rank let go of the old one. So the
// ranks that are left find out what was decided, and complete it, also for those that are gone.
//
// Each rank writes where training stands into the record of its arena (state_record.h) whenever that changes, so that
// processes which were never there find out as well when nobody else is left.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "copus/comm/shared_memory/state_arena.h"
#include "copus/model/state_memory.h"
#include "copus/record/step_record.h"
#include "copus/train/optimizer.h"
#include "copus/train/relayout.h"
#include "copus/train/step_agreement.h"
#include "copus/train/training_state.h"

namespace copus {

// The state of a layout's ranks at a step boundary, and where training stands there.
struct StateAtRest {
  TrainingState training;         // its configuration is the one that the state is laid out for
  std::vector<BucketState> mine;  // of this process; empty where it is none of the ranks
  StateInArenas all;
};

// The numbers of a step that all ranks agree on.
struct DecidedStep {
  int64_t step = 0;  // 0: none yet
  StepAgreement agreed;
};

struct SurvivingState {
  std::shared_ptr<StateArena> arena;  // null in a process that has come anew
  int64_t loaded_in = -1;             // the epoch in which the state was loaded
  int64_t moves = 0;                  // of the state into other layouts since then
  at::Tensor journal;                 // the memory of this process' journal, in its arena
  StateAtRest at_rest;
  // The state after a move, complete on this rank; its addresses are empty until all ranks have said so.
  std::optional<StateAtRest> moved;
  DecidedStep decided;                 // the latest that this process knows of
  std::optional<WeightUpdate> update;  // the latest that this process has begun
  std::optional<StepRecord> record;    // of the latest step, where this process was there or has been told

  // Whether this process was a rank of the layout, and so knows where training stands.
  bool holds_state() const { return !at_rest.mine.empty(); }
};

// The journal of an update in this memory.
inline UpdateJournal journal_in(const at::Tensor& memory) {
  return UpdateJournal({static_cast<std::byte*>(memory.data_ptr()), memory.nbytes()});
}

// Its place in the arena.
inline int64_t offset_of_journal(const SurvivingState& state) {
  return static_cast<const std::byte*>(state.journal.data_ptr()) - state.arena->mine();
}

}  // namespace copus
