// What a kind of connection provides for one group of two ranks or more: blocking operations on host memory. Queues,
// asynchrony and modelled times are put around it once for all kinds (queued_communicator.h, timed_world.h).
#pragma once

#include <cstdint>

#include "copus/comm/operation.h"

namespace copus {

// The operations, which fit the group, do what Communicator says of them, and throw RankFailure as it does. Collectives
// are called by one thread at a time, sends by one thread at a time for each receiver, and receives by one for each
// sender. Collectives, sends and receives may be under way at the same time.
class Transport {
 public:
  virtual ~Transport() = default;

  virtual void all_reduce(const Operation& operation) = 0;
  virtual void reduce_scatter(const Operation& operation) = 0;
  virtual void all_gather(const Operation& operation) = 0;
  virtual void broadcast(const Operation& operation) = 0;
  virtual void barrier() = 0;

  virtual void send(const void* data, int64_t bytes, int64_t to) = 0;
  virtual void receive(void* data, int64_t bytes, int64_t from) = 0;
  // Sends if that needs no waiting, and says whether it did.
  virtual bool try_send(const void* data, int64_t bytes, int64_t to) = 0;
};

}  // namespace copus
