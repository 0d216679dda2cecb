// The record of an arena (StateArena::write_record): all that a process has to know of the training state that lies in
// the arenas of a layout's ranks, beside the state itself. Every rank writes it at each point at which more is decided,
// before anything is done that the record before did not know of.
#pragma once

#include <c10/core/ScalarType.h>

#include <compare>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "copus/train/surviving_state.h"

namespace copus {

// How far a record is. Of several, the state in the arenas is that of the latest: whoever lets go of a layout has
// written a record of the next one, and whoever changes weights one of the step.
struct RecordAge {
  int64_t loaded_in = -1;
  int64_t moves = 0;
  int64_t step = 0;       // the latest that is decided
  int64_t completed = 0;  // the latest that the writer had completed
  auto operator<=>(const RecordAge&) const = default;
};

// Writes the record of `state` at rest, with `training` as where training stands. Does nothing where this process
// is no rank of the layout, or was the state not loaded by all.
void write_record(const SurvivingState& state, const TrainingState& training);

// The age of a record; empty for an empty one.
std::optional<RecordAge> age_of_record(std::string_view record);

// Takes over what the record says. `state` then knows where the state of others lies, and has none of its own. Throws
// InternalError where the weights there are not of `dtype`.
void take_record(std::string_view record, at::ScalarType dtype, SurvivingState& state);

}  // namespace copus
