// What a kind of connection has to provide for one group: blocking operations. Queueing, asynchrony and clocks are put
// around it once for all kinds (queued_communicator.h, timed_world.h).
#pragma once

#include <cstdint>
#include <span>

#include "copus/comm/data_type.h"

namespace copus {

// Arguments and order of summation as in Communicator. Collectives are called by one thread at a time; sends by one
// thread at a time for each receiver, receives likewise for each sender; all of these at the same time as one another.
// Waits throw RankFailure as described there.
class Transport {
 public:
  virtual ~Transport() = default;

  virtual void all_reduce(void* data, int64_t count, DataType type, Reduction reduction) = 0;
  virtual void reduce_scatter(void* input, void* output, std::span<const int64_t> counts, DataType type,
                              Reduction reduction) = 0;
  virtual void all_gather(const void* input, void* output, std::span<const int64_t> counts, DataType type) = 0;
  virtual void broadcast(void* data, int64_t count, DataType type, int64_t root) = 0;
  virtual void barrier() = 0;

  virtual void send(const void* data, int64_t bytes, int64_t to) = 0;
  virtual void receive(void* data, int64_t bytes, int64_t from) = 0;
  // Sends if that needs no waiting, and says whether it did.
  virtual bool try_send(const void* data, int64_t bytes, int64_t to) = 0;
};

}  // namespace copus
