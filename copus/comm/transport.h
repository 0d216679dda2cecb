// Declares the operations that each kind of connection provides for one group of at least two ranks. They are blocking
// and work on host memory. queued_communicator.h adds queues and asynchrony, and timed_world.h adds modelled times, for
// all kinds of connection.
#pragma once

#include <cstdint>

#include "copus/comm/operation.h"

namespace copus {

// Callers pass only operations that fit the group. The operations behave as Communicator describes, including
// RankFailure. One thread at a time calls collectives, one thread per receiver calls sends, and one thread per sender
// calls receives. Collectives, sends and receives may run at the same time.
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
  // Sends the message if that needs no waiting. Returns whether it was sent.
  virtual bool try_send(const void* data, int64_t bytes, int64_t to) = 0;
};

}  // namespace copus
