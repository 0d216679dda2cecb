// One group of a timed world (timed_world.h has the rules): every operation of the group behind it is accompanied by
// the times at which its members started it, from which each of them works out alone, and alike, when it is done.
#pragma once

#include <deque>
#include <memory>
#include <vector>

#include "copus/comm/communicator.h"
#include "copus/comm/rank_clock.h"
#include "copus/description/cluster_description.h"

namespace copus {

class TimedCommunicator final : public WrappedCommunicator {
 public:
  // Refers to the group and the clock.
  TimedCommunicator(Communicator& group, RankClock& clock, const ClusterDescription& cluster);

 private:
  class Collective;
  class SentMessage;

  Work do_start(const Operation& operation) override;
  void do_run(const Operation& operation) override;
  Work start_collective(const Operation& operation);
  void run_collective(const Operation& operation);
  Work start_message(const Operation& operation);
  void receive_message(const Operation& operation);
  // The seconds that a collective takes once all members have started it.
  double seconds_of(const Operation& collective) const;
  // Works out when the collective that was started first among those not settled is done.
  void settle_next();

  RankClock& clock_;
  const Link link_;                  // of collectives
  std::vector<Link> message_links_;  // by member

  double free_at_ = 0;                    // when the last settled collective is done
  std::vector<double> messages_free_at_;  // likewise the messages from each member
  // The group may still be reading from these and writing to them, so they are kept here until they are done: a rank
  // that fails does not wait for what it has started.
  std::deque<std::shared_ptr<Collective>> unsettled_;
  std::deque<std::shared_ptr<SentMessage>> messages_;
};

}  // namespace copus
