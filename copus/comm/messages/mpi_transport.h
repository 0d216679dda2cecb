// Sends one group's messages over MPI. All groups use MPI_COMM_WORLD, each with its own tags, because making a
// communicator would wait for the other members. MPI collectives are not used, because they need a communicator for
// each group and would sum in a different order.
#pragma once

#include <cstdint>
#include <list>
#include <memory>
#include <mutex>
#include <vector>

#include "copus/comm/messages/message_transport.h"
#include "copus/comm/messages/mpi_health.h"

namespace copus {

class MpiTransport final : public MessageTransport {
 public:
  // The number of tags that a group needs, from its first tag on.
  static constexpr int num_tags = num_channels;

  // `ranks`: the group in world ranks; `rank`: this rank's position among them.
  MpiTransport(std::vector<int64_t> ranks, int64_t rank, int first_tag, MpiHealth& health, double wait_seconds);
  ~MpiTransport() override;

  bool try_send(const void* data, int64_t bytes, int64_t to) override;

 private:
  class MpiMessages;
  struct BufferedSend;

  std::unique_ptr<Messages> start(Channel channel) override;
  int tag_of(Channel channel) const { return first_tag_ + static_cast<int>(channel); }

  const int first_tag_;
  std::mutex buffered_mutex_;
  std::list<BufferedSend> buffered_;  // sends of try_send
};

}  // namespace copus
