// Simulates, for tests, the messages of a schedule on devices that hold a message until it is received.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <map>
#include <tuple>
#include <utility>
#include <vector>

#include "copus/schedule/schedule.h"
#include "copus/schedule/testing/message_ends.h"

namespace copus {

// Devices that begin operations in the order of issue.
struct NarrowDevices {
  int64_t messages_at_once = 1;
  bool joins = true;  // whether a send and the receive after it form one operation (joins_receive)
};

// Returns whether the step ends. Operations on one link end in the order of issue. A pass that needs a message waits
// for its receive, and operations issued after the pass begin after it.
inline bool messages_end(const Schedule& schedule, const NarrowDevices& devices) {
  struct Operation {
    int64_t link;
    int64_t sends = 0, receives = 0;                          // not done yet
    int64_t held_from = std::numeric_limits<int64_t>::max();  // index of the first operation after a pass that needs it
    bool begun = false;
    bool done() const { return begun && sends == 0 && receives == 0; }
  };
  const int64_t ranks = schedule.pipeline_parallel;
  std::vector<std::vector<Operation>> operations(ranks);
  for (int64_t rank = 0; rank < ranks; ++rank) {
    const std::vector<Action> actions = in_order_of_start(schedule, rank);
    std::map<std::tuple<ActionKind, int64_t, int64_t>, size_t> receives;  // action -> index of its operation
    for (size_t i = 0; i < actions.size(); ++i) {
      const auto [kind, chunk, micro_batch] = actions[i];
      const bool sends = kind == ActionKind::send_activation || kind == ActionKind::send_gradient;
      if (!sends && !is_receive(kind)) {
        const auto needed = kind == ActionKind::forward ? ActionKind::receive_activation : ActionKind::receive_gradient;
        const auto receive = receives.find({needed, chunk, micro_batch});
        if (receive == receives.end()) continue;
        int64_t& held_from = operations[rank][receive->second].held_from;
        held_from = std::min(held_from, std::ssize(operations[rank]));
        continue;
      }
      const int64_t link = link_of(schedule, rank, kind);
      if (sends || i == 0 || !devices.joins || !joins_receive(schedule, actions[i - 1], actions[i])) {
        operations[rank].push_back({.link = link});
      }
      Operation& operation = operations[rank].back();
      (sends ? operation.sends : operation.receives) += 1;
      if (!sends) receives[{kind, chunk, micro_batch}] = operations[rank].size() - 1;
    }
  }
  // The first unfinished operation of the link on a rank, or null if it has not begun.
  const auto current = [&](int64_t rank, int64_t link) -> Operation* {
    for (Operation& operation : operations[rank]) {
      if (operation.link == link && !operation.done()) return operation.begun ? &operation : nullptr;
    }
    return nullptr;
  };
  for (bool progress = true; progress;) {
    progress = false;
    for (std::vector<Operation>& of_rank : operations) {
      int64_t under_way = 0;
      for (auto operation = of_rank.begin(); operation != of_rank.end(); ++operation) {
        if (!operation->begun) {
          const bool is_held = std::any_of(of_rank.begin(), operation, [&](const Operation& before) {
            return !before.done() &&
                   (before.held_from <= operation - of_rank.begin() || before.link == operation->link);
          });
          if (is_held || under_way == devices.messages_at_once) break;
          operation->begun = progress = true;
        }
        if (!operation->done()) ++under_way;
      }
    }
    for (int64_t link = 0; link < 2 * ranks; ++link) {
      Operation* const lower = current(link % ranks, link);
      Operation* const upper = current((link + 1) % ranks, link);
      if (lower == nullptr || upper == nullptr) continue;
      for (const auto& [sender, receiver] : {std::pair{lower, upper}, std::pair{upper, lower}}) {
        if (sender->sends == 0 || receiver->receives == 0) continue;
        --sender->sends;
        --receiver->receives;
        progress = true;
      }
    }
  }
  return std::all_of(operations.begin(), operations.end(), [](const std::vector<Operation>& of_rank) {
    return std::all_of(of_rank.begin(), of_rank.end(), [](const Operation& operation) { return operation.done(); });
  });
}

}  // namespace copus
