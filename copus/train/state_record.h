// The record of an arena (StateArena::write_record): everything that a process needs to continue from the training
// state in the arenas of a layout's ranks, apart from the state itself. Each rank writes it whenever more is decided,
// and before it acts on the decision.
#pragma once

#include <c10/core/ScalarType.h>

#include <compare>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "copus/train/surviving_state.h"

namespace copus {

// How far a record is. The arenas hold the state of the latest record: a rank that lets go of a layout has written a
// record of the next layout, and a rank that changes weights has written a record of the step.
struct RecordAge {
  int64_t loaded_in = -1;
  int64_t moves = 0;
  int64_t step = 0;       // the latest that is decided
  int64_t completed = 0;  // the latest that the writer had completed
  auto operator<=>(const RecordAge&) const = default;
};

// Writes the record of `state` at rest, with `training` as where training stands. The record is empty where this
// process holds no state: an earlier one is not valid any more. Does nothing before all ranks have loaded their state.
void write_record(const SurvivingState& state, const TrainingState& training);

// A record of a process that has ended. No text: there is none.
struct FoundRecord {
  RecordAge age;
  std::string text;
};

// The latest record that this process can read (StateArena::ended) of state that was loaded in this epoch. `arena` may
// be null.
FoundRecord latest_record(const StateArena* arena, int64_t loaded_in);

// The latest epoch in which state was loaded that such a record tells of; -1 where there is none.
int64_t latest_load_on_record(const StateArena* arena);

// Takes over what the record says. `state` then knows where the state of others lies, and has none of its own. Throws
// InternalError where the weights there are not of `dtype`.
void take_record(std::string_view record, at::ScalarType dtype, SurvivingState& state);

}  // namespace copus
