// Makes the schedules. The four kinds share one pattern: forward passes to warm up, then forward and backward passes in
// turn, then the remaining backward passes. They differ in the number of warm-up passes, and in how many B's lie
// between a micro-batch's B (input gradients) and its W (weight gradients).
#include "copus/schedule/schedule.h"

#include <algorithm>
#include <cstddef>
#include <utility>

#include "copus/base/error.h"

namespace copus {

namespace {

int64_t microbatches_per_round(const Schedule& schedule) {
  return schedule.num_microbatches / interleaved_rounds(schedule.num_microbatches, schedule.pipeline_parallel);
}

struct Pattern {
  int64_t warm_up;       // F's before the first F that is followed by a B
  int64_t weight_delay;  // number of B's by which a W trails its own B
};

Pattern pattern_of(PipelineSchedule kind, const Schedule& schedule, int64_t rank) {
  const int64_t p = schedule.pipeline_parallel;
  const int64_t v = schedule.virtual_stages;
  const int64_t to_the_end = p - 1 - rank;
  switch (kind) {
    case PipelineSchedule::gpipe:
      return {.warm_up = schedule.num_microbatches, .weight_delay = 0};
    case PipelineSchedule::one_f_one_b:
      return {.warm_up = to_the_end, .weight_delay = 0};
    case PipelineSchedule::interleaved_1f1b:
      // Megatron-LM's number of warm-up passes: twice the distance to the last rank, plus a round of micro-batches for
      // each chunk except the last.
      return {.warm_up = 2 * to_the_end + (v - 1) * microbatches_per_round(schedule), .weight_delay = 0};
    case PipelineSchedule::zb_h1:
      // Rank r holds p - r micro-batches until B, so within the memory of rank 0, r more can wait for W.
      return {.warm_up = to_the_end, .weight_delay = rank};
  }
  fail_check("known pipeline schedule", __FILE__, __LINE__, "");
}

// Returns the chunk and micro-batch of a rank's k-th F. Each round of micro-batches passes through all chunks in turn.
Action nth_forward(const Schedule& schedule, int64_t k) {
  if (schedule.virtual_stages == 1) return {ActionKind::forward, 0, k};
  const int64_t round = microbatches_per_round(schedule), passes = round * schedule.virtual_stages;
  return {ActionKind::forward, k % passes / round, k / passes * round + k % round};
}

// Returns the chunk and micro-batch of the k-th B or W: the order of F with the chunks reversed.
Action nth_backward(const Schedule& schedule, ActionKind kind, int64_t k) {
  const Action forward = nth_forward(schedule, k);
  return {kind, schedule.virtual_stages - 1 - forward.chunk, forward.micro_batch};
}

// Builds the list of actions of one rank.
class RankList {
 public:
  RankList(const Schedule& schedule, int64_t rank, const Pattern& pattern)
      : schedule_(schedule), rank_(rank), pattern_(pattern) {}

  std::vector<Action> write() {
    const int64_t total = schedule_.num_microbatches * schedule_.virtual_stages;
    const int64_t warm_up = std::min(pattern_.warm_up, total);
    for (int64_t k = 0; k < warm_up; ++k) add_forward(k);
    for (int64_t k = 0; k < total; ++k) {
      if (warm_up + k < total) add_forward(warm_up + k);
      add_backward(k);
    }
    for (int64_t k = std::max<int64_t>(total - pattern_.weight_delay, 0); k < total; ++k) add_weight_gradient(k);
    return std::move(actions_);
  }

 private:
  bool is_first_stage(int64_t chunk) const { return schedule_.stage(rank_, chunk) == 0; }
  bool is_last_stage(int64_t chunk) const { return schedule_.stage(rank_, chunk) + 1 == schedule_.num_stages(); }

  void add_forward(int64_t k) {
    const auto [kind, chunk, micro_batch] = nth_forward(schedule_, k);
    if (!is_first_stage(chunk)) actions_.push_back({ActionKind::receive_activation, chunk, micro_batch});
    actions_.push_back({kind, chunk, micro_batch});
    if (!is_last_stage(chunk)) actions_.push_back({ActionKind::send_activation, chunk, micro_batch});
  }

  // Adds a B, and the W that follows it.
  void add_backward(int64_t k) {
    const auto [kind, chunk, micro_batch] = nth_backward(schedule_, ActionKind::backward_input, k);
    if (!is_last_stage(chunk)) actions_.push_back({ActionKind::receive_gradient, chunk, micro_batch});
    actions_.push_back({kind, chunk, micro_batch});
    if (pattern_.weight_delay == 0) add_weight_gradient(k);
    if (!is_first_stage(chunk)) actions_.push_back({ActionKind::send_gradient, chunk, micro_batch});
    if (pattern_.weight_delay > 0 && k >= pattern_.weight_delay) add_weight_gradient(k - pattern_.weight_delay);
  }

  void add_weight_gradient(int64_t k) { actions_.push_back(nth_backward(schedule_, ActionKind::backward_weight, k)); }

  const Schedule& schedule_;
  int64_t rank_;
  Pattern pattern_;
  std::vector<Action> actions_;
};

}  // namespace

Schedule make_schedule(PipelineSchedule kind, int64_t pipeline_parallel, int64_t virtual_stages,
                       int64_t num_microbatches) {
  COPUS_CHECK(pipeline_parallel >= 1 && virtual_stages >= 1 && num_microbatches >= 1);
  const bool interleaved = kind == PipelineSchedule::interleaved_1f1b;
  COPUS_CHECK(interleaved == (virtual_stages > 1), "virtual_stages ", virtual_stages);
  COPUS_CHECK(!interleaved || (pipeline_parallel > 1 &&
                               num_microbatches % interleaved_rounds(num_microbatches, pipeline_parallel) == 0),
              "pipeline_parallel ", pipeline_parallel, ", ", num_microbatches, " micro-batches");

  Schedule schedule{pipeline_parallel, virtual_stages, num_microbatches, {}};
  for (int64_t rank = 0; rank < pipeline_parallel; ++rank) {
    schedule.ranks.push_back(RankList(schedule, rank, pattern_of(kind, schedule, rank)).write());
  }
  return schedule;
}

bool joins_receive(const Schedule& schedule, const Action& send, const Action& next) {
  if (schedule.virtual_stages > 1) return false;
  return (send.kind == ActionKind::send_activation && next.kind == ActionKind::receive_gradient) ||
         (send.kind == ActionKind::send_gradient && next.kind == ActionKind::receive_activation);
}

std::vector<Action> in_order_of_start(const Schedule& schedule, int64_t rank) {
  const std::vector<Action>& actions = schedule.ranks[rank];
  if (schedule.virtual_stages == 1) return actions;
  std::vector<Action> order;
  size_t latest_pass = 0;  // position where the latest F, or B with its W, begins
  for (const Action& action : actions) {
    if (is_receive(action.kind)) {
      order.insert(order.begin() + static_cast<std::ptrdiff_t>(latest_pass++), action);
      continue;
    }
    if (action.kind == ActionKind::forward || action.kind == ActionKind::backward_input) latest_pass = order.size();
    order.push_back(action);
  }
  return order;
}

int64_t activation_bound(PipelineSchedule kind, const Schedule& schedule, int64_t rank) {
  return std::min(pattern_of(kind, schedule, rank).warm_up + 1, schedule.num_microbatches * schedule.virtual_stages);
}

}  // namespace copus
