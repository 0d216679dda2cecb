// Describes pipeline schedules as data: every pipeline rank has an ordered list of its actions in one step. Tests check
// and time the same lists that training executes.
#pragma once

#include <cstdint>
#include <vector>

#include "copus/description/parallel_strategy.h"

namespace copus {

enum class ActionKind {
  forward,             // F
  backward_input,      // B: gradient of the chunk's input
  backward_weight,     // W: gradients of its weights
  send_activation,     // to the next stage; does not wait for the receiver
  receive_activation,  // from the previous stage; F waits for it
  send_gradient,       // to the previous stage
  receive_gradient,    // from the next stage; B waits for it
};

inline bool is_receive(ActionKind kind) {
  return kind == ActionKind::receive_activation || kind == ActionKind::receive_gradient;
}

struct Action {
  ActionKind kind;
  int64_t chunk;        // chunk of this rank, 0 .. v-1: stage = chunk * p + rank
  int64_t micro_batch;  // 0 .. m-1
  bool operator==(const Action&) const = default;
};

struct Schedule {
  int64_t pipeline_parallel = 1;
  int64_t virtual_stages = 1;
  int64_t num_microbatches = 1;
  std::vector<std::vector<Action>> ranks;  // by pipeline rank

  int64_t num_stages() const { return pipeline_parallel * virtual_stages; }
  int64_t stage(int64_t rank, int64_t chunk) const { return chunk * pipeline_parallel + rank; }
};

// Makes the schedule of `kind`. F is a forward pass; B and W are the parts of a backward pass that compute gradients of
// inputs and of weights. Within a chunk, F, B and W each run in the order of the micro-batches, so that gradients are
// summed in the same order under every schedule.
//
// A W that directly follows its own B forms one backward pass with this B: the executor runs the two layer by layer and
// sends the gradient on when both are done (send_gradient follows W). This holds for every W of gpipe, 1f1b and
// interleaved, and for every W on rank 0 in zb-h1. Every other send directly follows the F or B that produced its
// content. Receives directly precede the F or B that needs them. Activations and gradients may travel in the same
// direction (interleaved with p = 2). They are then received in the order in which they were sent, because the time
// between sending and use, counted in actions, is the same for both.
//
// interleaved_1f1b needs virtual_stages > 1, pipeline_parallel > 1 and rounds of equal size (interleaved_rounds). The
// other kinds need virtual_stages 1. Otherwise throws InternalError, because infeasible_reason refuses such strategies.
Schedule make_schedule(PipelineSchedule kind, int64_t pipeline_parallel, int64_t virtual_stages,
                       int64_t num_microbatches);

// On some devices a message waits for its receiver (Route in comm/operation.h). On such devices, a send and the receive
// after it may have to form one operation. Returns whether `send` and `next` do. With one chunk per rank, they do if
// `next` receives from the same neighbour; neighbours then share one communicator. With several chunks, neighbours have
// one communicator per direction and nothing is joined, because some joined operations would wait for each other. With
// these rules no schedule deadlocks, even if a device begins its operations in the order of issue and has space for
// only one message at a time (two with several chunks).
bool joins_receive(const Schedule& schedule, const Action& send, const Action& next);

// Returns the actions of a rank in the order in which it starts them. With several chunks, a receive starts one F or B
// earlier than the F or B that needs it, so that its message overlaps with computation (as with Megatron-LM's
// overlap_p2p_comm). The rank still waits for the message where the schedule's list has the receive. With one chunk,
// this is the order of the list.
std::vector<Action> in_order_of_start(const Schedule& schedule, int64_t rank);

// Returns the largest number of micro-batches whose activations a rank holds at once (F done, B not finished), summed
// over its chunks. The number is m for gpipe, min(m, p - rank) for 1f1b and zb-h1, and min(v m, warm-up passes + 1) for
// interleaved. In addition, a rank of zb-h1 holds the tensors that waiting W's need, for up to `rank` micro-batches.
// Together these are at most p micro-batches, as many as rank 0 of 1f1b holds.
int64_t activation_bound(PipelineSchedule kind, const Schedule& schedule, int64_t rank);

}  // namespace copus
