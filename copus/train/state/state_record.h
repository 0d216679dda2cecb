// The record of an arena (StateArena::write_record). It contains all values outside of tensors that a process needs to
// continue from the training state in the arenas of a layout's ranks. Each rank writes it whenever a step or a move is
// decided, before it acts on the decision.
#pragma once

#include <c10/core/ScalarType.h>

#include <compare>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "copus/train/state/surviving_state.h"

namespace copus {

// The age of a record. The arenas hold the state of the latest record: a rank writes a record of the next layout before
// it releases the old one, and a record of the step before it changes weights.
struct RecordAge {
  int64_t loaded_in = -1;
  int64_t moves = 0;
  int64_t step = 0;       // the latest that was decided
  int64_t completed = 0;  // the latest that the writer had completed
  auto operator<=>(const RecordAge&) const = default;
};

// Writes the record of `state` at rest, with `training` as the progress of training. The record is empty if this
// process holds no state; this invalidates an earlier record. Does nothing before all ranks have loaded their state.
void write_record(const SurvivingState& state, const TrainingState& training);

// A record of a process that has ended. An empty text means there is none.
struct FoundRecord {
  RecordAge age;
  std::string text;
};

// Returns the latest record that this process can read (StateArena::ended) of state that was loaded in epoch
// `loaded_in`. `arena` may be null.
FoundRecord latest_record(const StateArena* arena, int64_t loaded_in);

// The latest epoch in such a record in which state was loaded; -1 if there is no record.
int64_t latest_load_on_record(const StateArena* arena);

// Restores `state` from the record. Afterwards `state` contains the addresses of other processes' state, and no state
// of its own. Throws InternalError if the weights there are not of `dtype`.
void take_record(std::string_view record, at::ScalarType dtype, SurvivingState& state);

}  // namespace copus
