// Pipeline schedules as data: for every pipeline rank the list of what it does in one step, in order. Pure: the same
// lists are checked, timed, simulated and executed.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "copus/strategy/parallel_strategy.h"

namespace copus {

enum class ActionKind {
  forward,             // F
  backward_input,      // B: gradient of the chunk's input
  backward_weight,     // W: gradients of its weights; runs at once where it directly follows its B
  send_activation,     // to the next stage; does not wait for the receiver
  receive_activation,  // from the previous stage; waits
  send_gradient,       // to the previous stage
  receive_gradient,    // from the next stage
};

struct Action {
  ActionKind kind;
  int64_t chunk;        // of this rank, 0 .. v-1: stage = chunk * p + rank
  int64_t micro_batch;  // 0 .. m-1
  bool operator==(const Action&) const = default;
};

struct Schedule {
  int64_t pipeline_parallel = 1;
  int64_t virtual_stages = 1;
  int64_t num_microbatches = 1;
  std::vector<std::vector<Action>> ranks;  // by pipeline rank
};

// The schedule of `kind`. Sends directly follow the F or B that made what is sent, receives directly precede the F or B
// that needs it. Within a chunk F, B and W each run in the order of the micro-batches, so that gradients are summed in
// one order whatever the schedule. interleaved_1f1b needs num_microbatches to be a multiple of pipeline_parallel;
// virtual_stages > 1 needs interleaved_1f1b (InternalError otherwise: infeasible_reason refuses such strategies).
Schedule make_schedule(PipelineSchedule kind, int64_t pipeline_parallel, int64_t virtual_stages,
                       int64_t num_microbatches);

// The most micro-batches whose activations one chunk set of a rank may hold at once (F done, B not finished), summed
// over its chunks: m for gpipe, p - rank for 1f1b and zb-h1 (at most m), Megatron's warm-up count + 1 for interleaved.
int64_t activation_bound(PipelineSchedule kind, const Schedule& schedule, int64_t rank);

// What is wrong with a schedule, or nothing: every F, B and W of every chunk and micro-batch exactly once and in the
// order F, B, W; every send has its receive on the neighbour, in the same order on each directed pair (messages between
// two ranks arrive in the order in which they were sent); runs to its end without deadlock; no rank holds more
// activations than bounds[rank].
std::optional<std::string> check_schedule(const Schedule& schedule, const std::vector<int64_t>& bounds);

}  // namespace copus
