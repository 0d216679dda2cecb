// Communication within one ordered group of ranks. Torch-free: callers pass addresses and counts. Reductions sum in the
// order of the group's ranks, element by element (bfloat16 in fp32, rounded once), so that results repeat bitwise and
// do not depend on message sizes or on how a buffer is cut. (Of device memory over NCCL, the order is NCCL's.)
//
// Buffers are host memory, or memory of the rank's GPU (device_runtime.h). An operation on device memory comes after
// what its caller's current stream held when it was started, and what that stream is given after wait(), or after a
// blocking call, comes after the operation. Neither need block the host; done() means done on the device.
//
// Every member of a group must start the same collectives in the same order. Nothing waits for ever: a wait that finds
// a rank failed, or that exceeds the world's deadline, throws RankFailure naming who is missing.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "copus/comm/data_type.h"

namespace copus {

// An operation under way. Its buffers must stay alive and untouched until wait() returns or done() is true. Destroying
// it does not wait: whoever started it must.
class Work {
 public:
  // What stands behind the handle.
  class State {
   public:
    virtual ~State() = default;
    virtual void wait() = 0;  // throws what the operation threw
    virtual bool done() = 0;
  };

  Work() = default;  // done
  explicit Work(std::shared_ptr<State> state) : state_(std::move(state)) {}
  void wait() const {
    if (state_) state_->wait();
  }
  bool done() const { return !state_ || state_->done(); }

 private:
  std::shared_ptr<State> state_;
};

// Called by one thread of the rank. Counts are in elements.
class Communicator {
 public:
  virtual ~Communicator() = default;
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  // World ranks of the members, in the group's order, and this rank's place among them.
  const std::vector<int64_t>& ranks() const { return ranks_; }
  int64_t rank() const { return rank_; }
  int64_t size() const { return static_cast<int64_t>(ranks_.size()); }

  virtual Work start_all_reduce(void* data, int64_t count, DataType type, Reduction reduction) = 0;
  // input: sum(counts) elements; member i gets the counts[i] elements after those of the members before it, reduced.
  // output may be the member's own part of input; the rest of input is then left unspecified.
  virtual Work start_reduce_scatter(void* input, void* output, std::span<const int64_t> counts, DataType type,
                                    Reduction reduction) = 0;
  // Member i gives counts[i] elements; output: sum(counts) elements, in the order of the members. input may be the
  // member's own part of output.
  virtual Work start_all_gather(const void* input, void* output, std::span<const int64_t> counts, DataType type) = 0;
  virtual Work start_broadcast(void* data, int64_t count, DataType type, int64_t root) = 0;
  // Messages between two members arrive in the order in which they were sent, each as it was sent: the receiver knows
  // count and type. A send needs no receiver to make progress in anything else.
  virtual Work start_send(const void* data, int64_t count, DataType type, int64_t to) = 0;

  virtual void receive(void* data, int64_t count, DataType type, int64_t from) = 0;
  virtual void barrier() = 0;

  // Bytes to or from one member.
  struct Message {
    int64_t member;
    void* data;
    int64_t bytes;
  };
  // Messages between any members at once, at most one from each to each. Every member calls it, if with no messages.
  virtual void exchange(std::span<const Message> outgoing, std::span<const Message> incoming) {
    std::vector<Work> sends;
    for (const Message& message : outgoing) {
      sends.push_back(start_send(message.data, message.bytes, DataType::byte, message.member));
    }
    for (const Message& message : incoming) receive(message.data, message.bytes, DataType::byte, message.member);
    for (const Work& send : sends) send.wait();
  }

  // Each starts the operation and waits for it.
  virtual void all_reduce(void* data, int64_t count, DataType type, Reduction reduction = Reduction::sum) {
    start_all_reduce(data, count, type, reduction).wait();
  }
  virtual void reduce_scatter(void* input, void* output, std::span<const int64_t> counts, DataType type) {
    start_reduce_scatter(input, output, counts, type, Reduction::sum).wait();
  }
  virtual void all_gather(const void* input, void* output, std::span<const int64_t> counts, DataType type) {
    start_all_gather(input, output, counts, type).wait();
  }
  virtual void broadcast(void* data, int64_t count, DataType type, int64_t root) {
    start_broadcast(data, count, type, root).wait();
  }
  virtual void send(const void* data, int64_t count, DataType type, int64_t to) {
    start_send(data, count, type, to).wait();
  }

 protected:
  Communicator(std::vector<int64_t> ranks, int64_t rank) : ranks_(std::move(ranks)), rank_(rank) {}

 private:
  std::vector<int64_t> ranks_;
  int64_t rank_;
};

}  // namespace copus
