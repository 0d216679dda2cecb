// The record of an arena (StateArena::write_record). It has all values that a process needs, in addition to the tensors
// in the arenas, to continue from the training state of a layout. Each rank writes it when a step or a move is decided,
// before it acts on the decision.
#pragma once

#include <c10/core/ScalarType.h>

#include <compare>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "copus/train/state/surviving_state.h"

namespace copus {

// The age of a record. The arenas hold the state that the latest record describes, because a rank writes the record of
// a new layout before it releases the old layout, and the record of a step before the step changes weights.
struct RecordAge {
  int64_t loaded_in = -1;
  int64_t moves = 0;
  int64_t step = 0;       // latest decided step
  int64_t completed = 0;  // latest step that the writer had completed
  auto operator<=>(const RecordAge&) const = default;
};

// Writes the record of `state` at rest, with the progress `training`. If this process holds no state, writes an empty
// record, which invalidates an earlier one. Does nothing before all ranks have loaded their state.
void write_record(const SurvivingState& state, const TrainingState& training);

// The record of an ended process. An empty text: none.
struct FoundRecord {
  RecordAge age;
  std::string text;
};

// Returns the latest record of an ended process that this process can read (StateArena::ended). Considers only records
// about state that was loaded in epoch `loaded_in`. `arena` may be null.
FoundRecord latest_record(const StateArena* arena, int64_t loaded_in);

// Returns the latest epoch of loading in any such record; -1 without records.
int64_t latest_load_on_record(const StateArena* arena);

// Restores `state` from the record. Afterwards `state` holds the addresses of the buffers in other processes, and no
// buffers of this process. Throws InternalError if the recorded weights are not of `dtype`.
void take_record(std::string_view record, at::ScalarType dtype, SurvivingState& state);

}  // namespace copus
