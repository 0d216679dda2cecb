// Declares the operations that each kind of connection provides for one group of at least two ranks: blocking, on host
// memory. Queues, asynchrony and modelled times are added around them, once for all kinds (queued_communicator.h,
// timed_world.h).
#pragma once

#include <cstdint>

#include "copus/comm/operation.h"

namespace copus {

// The operations fit the group and behave as Communicator describes, including RankFailure. One thread at a time calls
// collectives, one thread per receiver calls sends, and one thread per sender calls receives. Collectives, sends and
// receives may run at the same time.
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
  // Sends if that is possible without waiting, and returns whether it did.
  virtual bool try_send(const void* data, int64_t bytes, int64_t to) = 0;
};

}  // namespace copus
