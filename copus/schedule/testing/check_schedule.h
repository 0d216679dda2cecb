// A checker for tests. It proves that a schedule is complete, ordered, free of deadlock and within its memory bounds,
// or reports a fault.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "copus/base/error.h"
#include "copus/schedule/testing/message_ends.h"

namespace copus {

namespace schedule_checks {

inline constexpr int64_t num_kinds = 7;
inline constexpr int64_t nowhere = -1;

inline std::string describe(const Action& action) {
  return concat(to_string(action.kind), " of chunk ", action.chunk, ", micro-batch ", action.micro_batch);
}

inline bool is_send(ActionKind kind) {
  return kind == ActionKind::send_activation || kind == ActionKind::send_gradient;
}

// The position of every action in a rank's list.
class Positions {
 public:
  explicit Positions(const Schedule& schedule)
      : num_microbatches_(schedule.num_microbatches),
        at_(num_kinds * schedule.virtual_stages * schedule.num_microbatches, nowhere) {}

  int64_t& operator[](const Action& action) { return at_[index(action)]; }
  int64_t operator[](const Action& action) const { return at_[index(action)]; }

 private:
  int64_t index(const Action& action) const {
    return (action.chunk * num_microbatches_ + action.micro_batch) * num_kinds + static_cast<int64_t>(action.kind);
  }

  int64_t num_microbatches_;
  std::vector<int64_t> at_;
};

using Finding = std::optional<std::string>;

class Checker {
 public:
  Checker(const Schedule& schedule, const std::vector<int64_t>& bounds) : schedule_(schedule), bounds_(bounds) {}

  Finding run() {
    for (int64_t rank = 0; rank < schedule_.pipeline_parallel; ++rank) {
      if (auto finding = find_positions(rank)) return finding;
      if (auto finding = check_computations(rank)) return finding;
      if (auto finding = check_messages(rank)) return finding;
      if (auto finding = check_activations(rank)) return finding;
    }
    if (auto finding = check_message_order()) return finding;
    return check_progress();
  }

 private:
  const std::vector<Action>& actions(int64_t rank) const { return schedule_.ranks[rank]; }

  Finding find_positions(int64_t rank) {
    auto& positions = positions_.emplace_back(schedule_);
    for (size_t index = 0; index < actions(rank).size(); ++index) {
      const Action& action = actions(rank)[index];
      if (action.chunk < 0 || action.chunk >= schedule_.virtual_stages || action.micro_batch < 0 ||
          action.micro_batch >= schedule_.num_microbatches) {
        return concat("rank ", rank, " does ", describe(action), ", which does not exist");
      }
      if (positions[action] != nowhere) return concat("rank ", rank, " does ", describe(action), " twice");
      positions[action] = static_cast<int64_t>(index);
    }
    return {};
  }

  // Reports a fault if `second` comes before `first`. Both must be in the list.
  Finding require_after(int64_t rank, const Action& first, const Action& second) const {
    const Positions& positions = positions_[rank];
    if (positions[second] < positions[first]) {
      return concat("rank ", rank, " does ", describe(second), " before its ", describe(first));
    }
    return {};
  }

  Finding check_computations(int64_t rank) const {
    const Positions& positions = positions_[rank];
    constexpr std::array kinds = {ActionKind::forward, ActionKind::backward_input, ActionKind::backward_weight};
    for (int64_t chunk = 0; chunk < schedule_.virtual_stages; ++chunk) {
      for (int64_t micro_batch = 0; micro_batch < schedule_.num_microbatches; ++micro_batch) {
        for (size_t i = 0; i < kinds.size(); ++i) {
          const Action action{kinds[i], chunk, micro_batch};
          if (positions[action] == nowhere) return concat("rank ", rank, " never does ", describe(action));
          if (i > 0) {
            if (auto finding = require_after(rank, {kinds[i - 1], chunk, micro_batch}, action)) return finding;
          }
          if (micro_batch > 0) {
            if (auto finding = require_after(rank, {kinds[i], chunk, micro_batch - 1}, action)) return finding;
          }
        }
      }
    }
    return {};
  }

  // Checks that a message exists if and only if it is needed, and that it is on the right side of the F or B that
  // produces or uses it.
  Finding check_message(int64_t rank, const Action& message, ActionKind owner_kind, bool needed) const {
    const Positions& positions = positions_[rank];
    const Action owner{owner_kind, message.chunk, message.micro_batch};
    if ((positions[message] != nowhere) != needed) {
      return concat("rank ", rank, needed ? " never does " : " has no neighbour for its ", describe(message));
    }
    if (!needed) return {};
    return is_send(message.kind) ? require_after(rank, owner, message) : require_after(rank, message, owner);
  }

  Finding check_messages(int64_t rank) const {
    for (int64_t chunk = 0; chunk < schedule_.virtual_stages; ++chunk) {
      const int64_t stage = schedule_.stage(rank, chunk);
      const bool has_previous = stage > 0;
      const bool has_next = stage + 1 < schedule_.num_stages();
      for (int64_t i = 0; i < schedule_.num_microbatches; ++i) {
        using enum ActionKind;
        if (auto finding = check_message(rank, {receive_activation, chunk, i}, forward, has_previous)) return finding;
        if (auto finding = check_message(rank, {send_activation, chunk, i}, forward, has_next)) return finding;
        if (auto finding = check_message(rank, {receive_gradient, chunk, i}, backward_input, has_next)) return finding;
        if (auto finding = check_message(rank, {send_gradient, chunk, i}, backward_input, has_previous)) return finding;
      }
    }
    return {};
  }

  Finding check_activations(int64_t rank) const {
    const int64_t bound = bounds_[rank];
    int64_t held = 0;
    for (const Action& action : actions(rank)) {
      if (action.kind == ActionKind::forward) ++held;
      if (action.kind == ActionKind::backward_input) --held;
      if (held > bound) {
        return concat("rank ", rank, " holds the activations of ", held, " micro-batches after ", describe(action),
                      "; its bound is ", bound);
      }
    }
    return {};
  }

  // Checks that two ranks send and receive their messages in the same order. Earlier checks ensure that every message
  // has both ends, so the two lists can differ only in their order.
  Finding check_message_order() const {
    std::map<std::pair<int64_t, int64_t>, std::vector<Action>> sent;
    for (int64_t rank = 0; rank < schedule_.pipeline_parallel; ++rank) {
      for (const Action& action : actions(rank)) {
        if (is_send(action.kind)) {
          const MessageEnd receive = other_end(schedule_, rank, action);
          sent[{rank, receive.rank}].push_back(receive.action);
        }
      }
    }
    std::map<std::pair<int64_t, int64_t>, size_t> received;
    for (int64_t rank = 0; rank < schedule_.pipeline_parallel; ++rank) {
      for (const Action& action : actions(rank)) {
        if (!is_receive(action.kind)) continue;
        const int64_t from = other_end(schedule_, rank, action).rank;
        const Action& arriving = sent[{from, rank}][received[{from, rank}]++];
        if (arriving != action) {
          return concat("rank ", rank, " does ", describe(action), " where rank ", from, " has sent what its ",
                        describe(arriving), " waits for: messages arrive in the order in which they were sent");
        }
      }
    }
    return {};
  }

  // Executes the lists: a receive waits for its send; nothing else waits.
  Finding check_progress() const {
    std::vector<size_t> next(schedule_.ranks.size(), 0);
    const auto can_run = [&](int64_t rank, const Action& action) {
      if (!is_receive(action.kind)) return true;
      const MessageEnd send = other_end(schedule_, rank, action);
      const int64_t position = positions_[send.rank][send.action];
      return position < static_cast<int64_t>(next[send.rank]);
    };
    bool moved = true;
    while (moved) {
      moved = false;
      for (int64_t rank = 0; rank < schedule_.pipeline_parallel; ++rank) {
        auto& at = next[rank];
        while (at < actions(rank).size() && can_run(rank, actions(rank)[at])) {
          ++at;
          moved = true;
        }
      }
    }
    std::string waiting;
    for (int64_t rank = 0; rank < schedule_.pipeline_parallel; ++rank) {
      const size_t at = next[rank];
      if (at == actions(rank).size()) continue;
      waiting += concat(waiting.empty() ? "" : "; ", "rank ", rank, " waits in ", describe(actions(rank)[at]));
    }
    if (waiting.empty()) return {};
    return "deadlock: " + waiting;
  }

  const Schedule& schedule_;
  const std::vector<int64_t>& bounds_;
  std::vector<Positions> positions_;  // by rank
};

}  // namespace schedule_checks

// Returns the fault of a schedule, or nothing for a valid one. In a valid schedule every F, B and W of every chunk and
// micro-batch occurs exactly once, in the order F, B, W, and each kind in the order of the micro-batches within its
// chunk. Every needed message is sent after it is produced and received before it is used. On each directed pair of
// ranks, receives are in the order of the sends, which is the order of arrival. The lists run to their end without
// deadlock. No rank holds more activations than bounds[rank].
inline std::optional<std::string> check_schedule(const Schedule& schedule, const std::vector<int64_t>& bounds) {
  COPUS_CHECK(std::ssize(schedule.ranks) == schedule.pipeline_parallel);
  COPUS_CHECK(bounds.size() == schedule.ranks.size());
  return schedule_checks::Checker(schedule, bounds).run();
}

}  // namespace copus
