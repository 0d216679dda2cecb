// The batch schedule of adapt.policy "steps", in the notation of Megatron-LM's --step-batch-size-schedule.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace copus {

// Pairs (consumed samples, batch): steps that begin at this number of samples or later have this batch. Numbers ascend
// from 0, and neighbouring batches differ.
using StepSchedule = std::vector<std::pair<double, int64_t>>;

// Parses space-separated pieces "THRESHOLD:BATCH": "0:768 250B:1536". A threshold is a number of consumed samples or,
// with suffix K, M, B or T (1e3, 1e6, 1e9, 1e12), of consumed tokens. (Megatron-LM reads numbers without a suffix as
// tokens too, if it knows the sequence length.) Throws UserError that names the piece.
StepSchedule parse_step_schedule(std::string_view text, int64_t sequence_length);

// Returns the batch of a step that begins after `consumed_samples`.
int64_t scheduled_batch(const StepSchedule& schedule, int64_t consumed_samples);

// Explains why the schedule is too fast for a run, which can change its batch only every second step. Empty if the
// schedule is slow enough.
std::optional<std::string> why_too_short(const StepSchedule& schedule);

}  // namespace copus
