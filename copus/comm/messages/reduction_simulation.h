// Simulates, in one process, thousands of members that reduce by reduction_rounds. Used by tests and to compute tables
// of costs. The members act like MessageTransport. Each message takes a given time, plus an individual delay if one is
// given.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <list>
#include <queue>
#include <set>
#include <utility>
#include <vector>

#include "copus/base/error.h"
#include "copus/comm/messages/reduction_rounds.h"

namespace copus {

struct MessageCosts {
  double latency_seconds = 0;      // from the sender's connection to the receiver's
  double seconds_per_message = 0;  // processor time of the sender, and as much of the receiver
  double bytes_per_second = 1;     // of a connection
};

// `Values`: a member's values; `take_in(received, place, values)` combines them, as copus::take_in does.
template <class Values>
class ReductionSimulation {
 public:
  using TakeIn = std::function<void(const Values& received, ReductionRound::Received place, Values& values)>;

  // `delay`: returns additional seconds, called for each message.
  ReductionSimulation(const MessageCosts& costs, TakeIn take_in, std::function<double()> delay = {})
      : costs_(costs), take_in_(std::move(take_in)), delay_(std::move(delay)) {}

  // Reduces the members' values, and returns the final values of each member. Every message has `bytes` bytes. A member
  // begins as soon as it has finished its part of the previous call.
  std::vector<Values> run(std::vector<Values> values, int64_t bytes) {
    const int64_t size = std::ssize(values);
    peers_.resize(size);
    members_.resize(size);
    for (int64_t member = 0; member < size; ++member) {
      Member& one = members_[member];
      one.values = std::move(values[member]);
      one.rounds = reduction_rounds(size, member);
      one.next = 0;
      one.has_sent = false;
    }
    for (int64_t member = 0; member < size; ++member) go_on(member, bytes);
    while (!under_way_.empty()) {
      Letter letter = under_way_.top();
      under_way_.pop();
      members_[letter.to].inbox.push_back(std::move(letter));
      go_on(members_[letter.to].inbox.back().to, bytes);
    }
    for (int64_t member = 0; member < size; ++member) {
      Member& one = members_[member];
      COPUS_CHECK(one.next == one.rounds.size() && one.inbox.empty(), "member ", member, " of ", size);
      values[member] = std::move(one.values);
    }
    return values;
  }

  // Total over all reductions so far.
  int64_t messages() const { return messages_; }
  int64_t bytes() const { return bytes_; }
  // The largest number of members with which one member exchanges messages.
  int64_t most_peers() const {
    size_t most = 0;
    for (const std::set<int64_t>& peers : peers_) most = std::max(most, peers.size());
    return static_cast<int64_t>(most);
  }
  // When the last member finished.
  double seconds() const {
    double last = 0;
    for (const Member& member : members_) last = std::max(last, member.time);
    return last;
  }

 private:
  struct Letter {
    double arrival;
    int64_t from, to;
    Values content;
    bool operator<(const Letter& other) const { return arrival > other.arrival; }  // the first to arrive is on top
  };
  struct Member {
    Values values = {};
    std::vector<ReductionRound> rounds = {};
    size_t next = 0;
    bool has_sent = false;  // its message of the next round
    double time = 0;
    std::list<Letter> inbox = {};
  };

  void go_on(int64_t member, int64_t bytes) {
    Member& one = members_[member];
    for (; one.next < one.rounds.size(); ++one.next, one.has_sent = false) {
      const ReductionRound& round = one.rounds[one.next];
      if (round.send_to >= 0 && !std::exchange(one.has_sent, true)) send(member, round.send_to, bytes);
      if (round.receive_from < 0) continue;
      const auto letter = std::find_if(one.inbox.begin(), one.inbox.end(),
                                       [&](const Letter& come) { return come.from == round.receive_from; });
      if (letter == one.inbox.end()) return;
      one.time = std::max(one.time, letter->arrival) + costs_.seconds_per_message;
      take_in_(letter->content, round.received, one.values);
      one.inbox.erase(letter);
    }
  }

  void send(int64_t from, int64_t to, int64_t bytes) {
    Member& one = members_[from];
    one.time += costs_.seconds_per_message;
    const double arrival = one.time + static_cast<double>(bytes) / costs_.bytes_per_second + costs_.latency_seconds;
    under_way_.push({arrival + (delay_ ? delay_() : 0), from, to, one.values});
    peers_[from].insert(to);
    peers_[to].insert(from);
    ++messages_;
    bytes_ += bytes;
  }

  const MessageCosts costs_;
  const TakeIn take_in_;
  const std::function<double()> delay_;
  std::vector<Member> members_;
  std::vector<std::set<int64_t>> peers_;  // by member
  std::priority_queue<Letter> under_way_;
  int64_t messages_ = 0, bytes_ = 0;
};

}  // namespace copus
