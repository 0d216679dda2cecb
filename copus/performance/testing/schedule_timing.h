// For tests: times a schedule by replaying its lists of actions. A slow and simple reference for
// performance/pipeline_time.h.
#pragma once

#include <algorithm>
#include <deque>
#include <map>
#include <numeric>
#include <utility>
#include <vector>

#include "copus/base/error.h"
#include "copus/performance/pipeline_time.h"
#include "copus/schedule/testing/message_ends.h"

namespace copus {

// One action with its times. A receive ends when its message has arrived. A send also ends when its message has
// arrived, but its rank continues at once.
struct TimedAction {
  Action action;
  double begin = 0;
  double end = 0;
};

struct ScheduleTiming {
  double seconds = 0;                           // when the last rank has finished
  std::vector<double> busy_seconds;             // time in F, B and W, by pipeline rank
  std::vector<std::vector<TimedAction>> ranks;  // every action with its times, by rank
  // Returns the idle fraction of the ranks' time.
  double bubble() const {
    const double busy = std::accumulate(busy_seconds.begin(), busy_seconds.end(), 0.0);
    return 1 - busy / (seconds * static_cast<double>(busy_seconds.size()));
  }
};

namespace schedule_timing {

// The messages from one rank to another, in flight or arrived.
struct Channel {
  struct Message {
    Action receive;
    double arrival;
  };
  std::deque<Message> messages;
  double free_at = 0;
};

class Replay {
 public:
  Replay(const Schedule& schedule, const std::vector<StageSeconds>& stages)
      : schedule_(schedule), stages_(stages), clocks_(schedule.ranks.size(), 0) {
    timing_.busy_seconds.resize(schedule.ranks.size(), 0);
    timing_.ranks.resize(schedule.ranks.size());
  }

  ScheduleTiming run() {
    size_t remaining = 0;
    for (const auto& actions : schedule_.ranks) remaining += actions.size();
    while (remaining > 0) {
      const size_t before = remaining;
      for (int64_t rank = 0; rank < schedule_.pipeline_parallel; ++rank) {
        const auto& actions = schedule_.ranks[rank];
        const auto& done = timing_.ranks[rank];
        while (done.size() < actions.size() && try_action(rank, actions[done.size()])) --remaining;
      }
      COPUS_CHECK(remaining < before, "the pipeline schedule deadlocks");
    }
    timing_.seconds = *std::max_element(clocks_.begin(), clocks_.end());
    return std::move(timing_);
  }

 private:
  // Executes an action, or returns false if it waits for a message that has not been sent.
  bool try_action(int64_t rank, const Action& action) {
    const StageSeconds& seconds = stages_[schedule_.stage(rank, action.chunk)];
    switch (action.kind) {
      case ActionKind::forward:
        compute(rank, action, seconds.forward);
        return true;
      case ActionKind::backward_input:
        compute(rank, action, seconds.backward_input);
        return true;
      case ActionKind::backward_weight:
        compute(rank, action, seconds.backward_weight);
        return true;
      case ActionKind::send_activation:
      case ActionKind::send_gradient:
        send(rank, action, seconds.send);
        return true;
      case ActionKind::receive_activation:
      case ActionKind::receive_gradient:
        return try_receive(rank, action);
    }
    return false;
  }

  double& clock(int64_t rank) { return clocks_[rank]; }

  void record(int64_t rank, const Action& action, double begin, double end) {
    timing_.ranks[rank].push_back({action, begin, end});
  }

  void compute(int64_t rank, const Action& action, double seconds) {
    const double begin = clock(rank);
    clock(rank) += seconds;
    timing_.busy_seconds[rank] += seconds;
    record(rank, action, begin, clock(rank));
  }

  void send(int64_t rank, const Action& action, double seconds) {
    const MessageEnd receive = other_end(schedule_, rank, action);
    Channel& channel = channels_[{rank, receive.rank}];
    channel.free_at = std::max(channel.free_at, clock(rank)) + seconds;
    channel.messages.push_back({receive.action, channel.free_at});
    record(rank, action, clock(rank), channel.free_at);
  }

  bool try_receive(int64_t rank, const Action& action) {
    Channel& channel = channels_[{other_end(schedule_, rank, action).rank, rank}];
    if (channel.messages.empty()) return false;
    const Channel::Message message = channel.messages.front();
    COPUS_CHECK(message.receive == action, "messages are received in another order than sent");
    channel.messages.pop_front();
    const double begin = clock(rank);
    clock(rank) = std::max(begin, message.arrival);
    record(rank, action, begin, clock(rank));
    return true;
  }

  const Schedule& schedule_;
  const std::vector<StageSeconds>& stages_;
  std::vector<double> clocks_;                               // by rank
  std::map<std::pair<int64_t, int64_t>, Channel> channels_;  // by sender and receiver
  ScheduleTiming timing_;
};

}  // namespace schedule_timing

// Times a schedule. `stages`: seconds by stage (num_stages of them). Messages between two ranks do not overlap: each
// departs once it has been sent and the previous one has arrived. Throws InternalError if the schedule deadlocks.
inline ScheduleTiming time_schedule(const Schedule& schedule, const std::vector<StageSeconds>& stages) {
  COPUS_CHECK(std::ssize(stages) == schedule.num_stages());
  return schedule_timing::Replay(schedule, stages).run();
}

// Returns the bubble that the literature gives for equal stages and free messages. f, b and w are the seconds of one
// rank's whole part of the model (all its chunks) for one micro-batch:
// gpipe and 1f1b (p-1) / (m + p-1) (Narayanan et al. 2021, section 2.2; any f, b, w);
// interleaved (p-1) / (v m + p-1) (section 2.2.2);
// zb-h1 idle / (m (f+b+w) + idle) with idle = (p-1)(f + b - w) (Qi et al. 2023, table 2) if m >= p and w <= b.
// In general idle = (p-1) f + (p-M) b + (M-1) max(b - w, 0), with M = min(m, p). The last rank waits for its first F.
// After its last B the gradient takes (p-1) b to reach rank 0, which M - 1 remaining W's fill as far as possible.
inline double bubble_formula(PipelineSchedule kind, int64_t pipeline_parallel, int64_t virtual_stages,
                             int64_t num_microbatches, double forward, double backward_input, double backward_weight) {
  const auto p = static_cast<double>(pipeline_parallel);
  const auto m = static_cast<double>(num_microbatches);
  switch (kind) {
    case PipelineSchedule::gpipe:
    case PipelineSchedule::one_f_one_b:
      return (p - 1) / (m + p - 1);
    case PipelineSchedule::interleaved_1f1b:
      return (p - 1) / (static_cast<double>(virtual_stages) * m + p - 1);
    case PipelineSchedule::zb_h1: {
      const double left = std::min(m, p);
      const double idle = (p - 1) * forward + (p - left) * backward_input +
                          (left - 1) * std::max(backward_input - backward_weight, 0.0);
      return idle / (m * (forward + backward_input + backward_weight) + idle);
    }
  }
  fail_check("known pipeline schedule", __FILE__, __LINE__, "");
}

}  // namespace copus
