// One group of a timed world (timed_world.h has the rules): every operation of the group behind it is accompanied by
// the times at which its members started it, from which each of them works out alone, and alike, when it is done.
#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "copus/comm/communicator.h"
#include "copus/comm/rank_clock.h"
#include "copus/description/cluster_description.h"

namespace copus {

class TimedCommunicator : public Communicator {
 public:
  // Refers to the group and the clock.
  TimedCommunicator(Communicator& group, RankClock& clock, const ClusterDescription& cluster);

  Work start_all_reduce(void* data, int64_t count, DataType type, Reduction reduction) override;
  Work start_reduce_scatter(void* input, void* output, std::span<const int64_t> counts, DataType type,
                            Reduction reduction) override;
  Work start_all_gather(const void* input, void* output, std::span<const int64_t> counts, DataType type) override;
  Work start_broadcast(void* data, int64_t count, DataType type, int64_t root) override;
  Work start_send(const void* data, int64_t count, DataType type, int64_t to) override;

  // On the caller's thread.
  void all_reduce(void* data, int64_t count, DataType type, Reduction reduction = Reduction::sum) override;
  void reduce_scatter(void* input, void* output, std::span<const int64_t> counts, DataType type) override;
  void all_gather(const void* input, void* output, std::span<const int64_t> counts, DataType type) override;
  void broadcast(void* data, int64_t count, DataType type, int64_t root) override;
  void receive(void* data, int64_t count, DataType type, int64_t from) override;
  void barrier() override;

 private:
  class Collective;
  class Message;

  double cost_of_all_reduce(int64_t count, DataType type) const;
  double cost_of_reduce_scatter(std::span<const int64_t> counts, DataType type) const;
  double cost_of_all_gather(std::span<const int64_t> counts, DataType type) const;
  double cost_of_broadcast(int64_t count, DataType type) const;

  Work start_collective(double cost, const std::function<Work()>& start);
  void run_collective(double cost, const std::function<void()>& run);
  // Works out when the collective that was started first among those not settled is done.
  void settle_next();

  Communicator& group_;
  RankClock& clock_;
  const Link link_;                  // of collectives
  std::vector<Link> message_links_;  // by member

  double free_at_ = 0;                    // when the last settled collective is done
  std::vector<double> messages_free_at_;  // likewise the messages from each member
  // What others may still be reading: kept here, so that it outlives a rank that fails before it has waited.
  std::deque<std::shared_ptr<Collective>> unsettled_;
  std::deque<std::shared_ptr<Message>> messages_;
};

}  // namespace copus
