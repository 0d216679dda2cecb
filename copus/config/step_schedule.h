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

// Pairs of consumed samples and the batch of the steps that begin there or later; in ascending order, the first at 0,
// each with another batch than the one before.
using StepSchedule = std::vector<std::pair<double, int64_t>>;

// Parses pieces "THRESHOLD:BATCH", separated by spaces: "0:768 250B:1536". The threshold is a number of consumed
// samples or, with the suffix K, M, B or T (1e3, 1e6, 1e9, 1e12), of consumed tokens. Megatron-LM reads every threshold
// of a schedule as tokens once it knows the sequence length, so a plain number other than 0 means something else there.
// Throws UserError naming the piece.
StepSchedule parse_step_schedule(std::string_view text, int64_t sequence_length);

// The batch of a step that begins after so many consumed samples.
int64_t scheduled_batch(const StepSchedule& schedule, int64_t consumed_samples);

// Explains why a run cannot carry the schedule out: a piece that is over before the run can change its batch again, two
// steps after the latest change. Empty where it can.
std::optional<std::string> why_too_short(const StepSchedule& schedule);

}  // namespace copus
