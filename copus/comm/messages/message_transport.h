// Builds the operations of one group from messages between two ranks, for ranks without shared memory. Sums are
// computed here, in the order of the members.
#pragma once

#include <cstddef>
#include <cstdint>
#include <iterator>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "copus/comm/transport.h"

namespace copus {

class HeartbeatHealth;

class MessageTransport : public Transport {
 public:
  void all_reduce(const Operation& operation) override;
  void reduce_scatter(const Operation& operation) override;
  void all_gather(const Operation& operation) override;
  void broadcast(const Operation& operation) override;
  void barrier() override;
  void send(const void* data, int64_t bytes, int64_t to) override;
  void receive(void* data, int64_t bytes, int64_t from) override;

 protected:
  // A message is received only on the channel on which it was sent.
  enum class Channel { collective, barrier, message };
  static constexpr int num_channels = 3;

  // The messages of one operation that are under way. Messages between the same two members arrive in order. Messages
  // without bytes are not sent. Once this object is destroyed, the buffers of unfinished messages are no longer
  // accessed.
  class Messages {
   public:
    Messages() = default;
    Messages(const Messages&) = delete;
    Messages& operator=(const Messages&) = delete;
    virtual ~Messages() = default;
    virtual void send(const void* data, int64_t bytes, int64_t to) = 0;
    virtual void receive(void* data, int64_t bytes, int64_t from) = 0;
    // Returns once all started messages are done. More can be started after that. Throws RankFailure.
    virtual void finish() = 0;
  };

  // `ranks`: the group in world ranks; `rank`: this rank's position among them.
  MessageTransport(std::vector<int64_t> ranks, int64_t rank, HeartbeatHealth& health, double wait_seconds);

  virtual std::unique_ptr<Messages> start(Channel channel) = 0;

  int64_t size() const { return std::ssize(ranks_); }
  int64_t world_rank(int64_t member) const { return ranks_[member]; }
  HeartbeatHealth& health() const { return health_; }
  double wait_seconds() const { return wait_seconds_; }
  // Ends the job with a failure of this world rank, and throws.
  [[noreturn]] void blame(int64_t missing, const std::string& cause);
  // Describes a rank for which this rank waited too long.
  std::string kept_waiting() const;

 private:
  void reduce_parts(const std::byte* input, std::byte* output, std::span<const int64_t> counts, DataType type,
                    Reduction reduction);
  void reduce_in_rounds(const Operation& operation);
  void gather_parts(const void* input, std::byte* output, std::span<const int64_t> counts, int64_t element_bytes);

  const std::vector<int64_t> ranks_;
  const int64_t rank_;
  HeartbeatHealth& health_;
  const double wait_seconds_;
  std::vector<std::byte> received_;  // from the other members, for a reduction
};

}  // namespace copus
