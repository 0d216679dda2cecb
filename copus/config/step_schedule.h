// The schedule of adapt.policy "steps": batches by consumed samples, in the notation of Megatron-LM's
// --step-batch-size-schedule.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace copus {

// Pairs of consumed samples and the batch of the steps that begin there or later. They are in ascending order, the
// first is at 0, and each batch differs from the one before it.
using StepSchedule = std::vector<std::pair<double, int64_t>>;

// Parses pieces "THRESHOLD:BATCH", separated by spaces: "0:768 250B:1536". The threshold is a number of consumed
// samples or, with the suffix K, M, B or T (1e3, 1e6, 1e9, 1e12), of consumed tokens. Megatron-LM differs: if it knows
// the sequence length, it reads every threshold of a schedule as tokens, also plain numbers. Throws UserError that
// names the piece.
StepSchedule parse_step_schedule(std::string_view text, int64_t sequence_length);

// The batch of a step that begins after `consumed_samples`.
int64_t scheduled_batch(const StepSchedule& schedule, int64_t consumed_samples);

// Explains why a run cannot follow the schedule; empty if it can. A run can change its batch again two steps after the
// latest change at the earliest, so shorter pieces are impossible.
std::optional<std::string> why_too_short(const StepSchedule& schedule);

}  // namespace copus
