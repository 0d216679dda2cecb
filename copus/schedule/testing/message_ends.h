// Finds, for tests, the send that matches each receive of a schedule.
#pragma once

#include <string_view>

#include "copus/base/error.h"
#include "copus/schedule/schedule.h"

namespace copus {

// Returns "F", "B", "W", "send_activation" and so on.
inline std::string_view to_string(ActionKind kind) {
  switch (kind) {
    case ActionKind::forward:
      return "F";
    case ActionKind::backward_input:
      return "B";
    case ActionKind::backward_weight:
      return "W";
    case ActionKind::send_activation:
      return "send_activation";
    case ActionKind::receive_activation:
      return "receive_activation";
    case ActionKind::send_gradient:
      return "send_gradient";
    case ActionKind::receive_gradient:
      return "receive_gradient";
  }
  return {};
}

// The link that carries a message of `rank` (Route in comm/operation.h). Two neighbours share one link, or with several
// chunks have one link per direction.
inline int64_t link_of(const Schedule& schedule, int64_t rank, ActionKind message) {
  const int64_t ranks = schedule.pipeline_parallel;
  const bool to_next = message == ActionKind::send_activation || message == ActionKind::receive_gradient;
  const bool is_backward = message == ActionKind::send_gradient || message == ActionKind::receive_gradient;
  return (to_next ? rank : (rank + ranks - 1) % ranks) + (schedule.virtual_stages > 1 && is_backward ? ranks : 0);
}

// The other end of a message: the receive for a send on `rank`, or the send for a receive.
struct MessageEnd {
  int64_t rank;
  Action action;
  bool operator==(const MessageEnd&) const = default;
};
inline MessageEnd other_end(const Schedule& schedule, int64_t rank, const Action& message) {
  const auto at_stage = [&](int64_t stage, ActionKind kind) {
    return MessageEnd{stage % schedule.pipeline_parallel,
                      Action{kind, stage / schedule.pipeline_parallel, message.micro_batch}};
  };
  const int64_t stage = schedule.stage(rank, message.chunk);
  switch (message.kind) {
    case ActionKind::send_activation:
      return at_stage(stage + 1, ActionKind::receive_activation);
    case ActionKind::receive_activation:
      return at_stage(stage - 1, ActionKind::send_activation);
    case ActionKind::send_gradient:
      return at_stage(stage - 1, ActionKind::receive_gradient);
    case ActionKind::receive_gradient:
      return at_stage(stage + 1, ActionKind::send_gradient);
    default:
      fail_check("is a message", __FILE__, __LINE__, "");
  }
}

}  // namespace copus
