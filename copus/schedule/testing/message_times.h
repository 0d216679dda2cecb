// Computes, for tests, the time of a schedule on devices whose messages begin when both ends have posted them.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <tuple>
#include <utility>
#include <vector>

#include "copus/base/error.h"
#include "copus/schedule/schedule.h"
#include "copus/schedule/testing/message_ends.h"

namespace copus {

using ActionLists = std::vector<std::vector<Action>>;  // by rank, in the order in which the rank starts them

// Starts each receive one F or B before the one that needs it, unless it is joined with the preceding send.
inline ActionLists start_receives_early(const Schedule& schedule) {
  ActionLists early;
  for (const std::vector<Action>& actions : schedule.ranks) {
    std::vector<Action>& order = early.emplace_back();
    std::ptrdiff_t pass = 0;
    for (size_t i = 0; i < actions.size(); ++i) {
      const bool is_joined = i > 0 && joins_receive(schedule, actions[i - 1], actions[i]);
      if (is_receive(actions[i].kind) && !is_joined) {
        order.insert(order.begin() + pass++, actions[i]);
        continue;
      }
      const bool is_of_b =
          i > 0 && actions[i - 1] == Action{ActionKind::backward_input, actions[i].chunk, actions[i].micro_batch};
      const bool is_message = actions[i].kind > ActionKind::backward_weight;
      if (!is_message && !is_of_b) pass = std::ssize(order);
      order.push_back(actions[i]);
    }
  }
  return early;
}

// Returns the time of a step in which an F, B or W of a stage takes 1 / virtual_stages and a message takes `message`.
// Ranks start actions in the order of `lists`. A pass begins when the previous pass and the message that it needs are
// done. A message begins when the passes that both ranks started before it are done, and the earlier messages on its
// link.
inline double step_time(const Schedule& schedule, const ActionLists& lists, double message) {
  struct Operation {
    Action action;
    std::vector<std::pair<int64_t, size_t>> after;  // rank and index of what it waits for
    double seconds = 0;
    std::optional<double> end;
  };
  const int64_t ranks = schedule.pipeline_parallel, chunks = schedule.virtual_stages;
  std::vector<std::vector<Operation>> all(ranks);
  for (int64_t rank = 0; rank < ranks; ++rank) {
    std::optional<size_t> pass;
    std::map<int64_t, size_t> on_link;
    std::map<std::tuple<ActionKind, int64_t, int64_t>, size_t> places;
    for (size_t i = 0; i < lists[rank].size(); ++i) {
      const Action& action = lists[rank][i];
      const auto [kind, chunk, micro_batch] = action;
      Operation operation{.action = action, .after = {}, .end = {}};
      if (pass) operation.after.emplace_back(rank, *pass);
      if (kind <= ActionKind::backward_weight) {
        operation.seconds = 1.0 / static_cast<double>(chunks);
        const auto needed = kind == ActionKind::forward ? ActionKind::receive_activation : ActionKind::receive_gradient;
        const auto receive = places.find({needed, chunk, micro_batch});
        if (receive != places.end()) operation.after.emplace_back(rank, receive->second);
        pass = i;
      } else {
        const int64_t link = link_of(schedule, rank, kind);
        const bool is_joined = i > 0 && joins_receive(schedule, lists[rank][i - 1], action);
        const auto before = on_link.find(link);
        if (is_joined) {  // begins when its send begins
          operation.after = all[rank].back().after;
        } else if (before != on_link.end()) {
          operation.after.emplace_back(rank, before->second);
        }
        operation.seconds = message;
        on_link[link] = i;
      }
      places[{kind, chunk, micro_batch}] = i;
      all[rank].push_back(operation);
    }
  }
  const auto ready = [&](const Operation& operation) -> std::optional<double> {
    double time = 0;
    for (const auto& [rank, place] : operation.after) {
      const std::optional<double>& end = all[rank][place].end;
      if (!end) return std::nullopt;
      time = std::max(time, *end);
    }
    return time;
  };
  double latest = 0;
  for (bool progress = true; std::exchange(progress, false);) {
    for (int64_t rank = 0; rank < ranks; ++rank) {
      for (Operation& operation : all[rank]) {
        if (operation.end) continue;
        std::optional<double> begin = ready(operation);
        if (begin && operation.action.kind > ActionKind::backward_weight) {
          const MessageEnd other = other_end(schedule, rank, operation.action);
          const auto there = std::find_if(all[other.rank].begin(), all[other.rank].end(),
                                          [&](const Operation& one) { return one.action == other.action; });
          const std::optional<double> others = ready(*there);
          begin = others ? std::optional(std::max(*begin, *others)) : std::nullopt;
        }
        if (!begin) continue;
        operation.end = *begin + operation.seconds;
        latest = std::max(latest, *operation.end);
        progress = true;
      }
    }
  }
  for (const auto& of_rank : all) {
    for (const Operation& operation : of_rank) COPUS_CHECK(operation.end, "the schedule deadlocks");
  }
  return latest;
}

}  // namespace copus
