// Communication within one ordered group of ranks. Torch-free: callers pass addresses and counts. Reductions sum in the
// order of the group's ranks, element by element (bfloat16 in fp32, rounded once), so that results repeat bitwise and
// do not depend on message sizes or on how a buffer is split. (For device memory over NCCL, the order is NCCL's.)
//
// Buffers are in host memory or in memory of the rank's GPU (device_runtime.h). For device memory, operations are
// ordered with the caller's current stream: (a) an operation runs after the work that was on the stream when the
// operation was started; (b) work put on the stream after wait(), or after a blocking call, runs after the operation.
// wait() and blocking calls need not block the host. done() means done on the device.
//
// Every member of a group must start the same collectives in the same order. Every wait is bounded: if a rank has
// failed, or if the wait exceeds the world's deadline, the wait throws RankFailure, which names the failed or missing
// rank.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "copus/comm/operation.h"

namespace copus {

// An operation under way. Its buffers must stay alive and untouched until wait() returns or done() is true. The
// destructor does not wait, so the caller must call wait() before destroying this object.
class Work {
 public:
  class State {
   public:
    virtual ~State() = default;
    virtual void wait() = 0;  // rethrows the error of the operation
    virtual bool done() = 0;
  };

  Work() = default;  // an operation that is done
  explicit Work(std::shared_ptr<State> state) : state_(std::move(state)) {}
  void wait() const {
    if (state_) state_->wait();
  }
  bool done() const { return !state_ || state_->done(); }

 private:
  std::shared_ptr<State> state_;
};

// Called by one thread of the rank at a time. Counts are in elements.
class Communicator {
 public:
  using Message = copus::Message;

  virtual ~Communicator() = default;
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  // World ranks of the members in the group's order, and this rank's position among them.
  const std::vector<int64_t>& ranks() const { return ranks_; }
  int64_t rank() const { return rank_; }
  int64_t size() const { return std::ssize(ranks_); }

  // Starts an operation: all_reduce, reduce_scatter, all_gather, broadcast, send or receive. `operation` may be
  // destroyed when this returns.
  Work start(const Operation& operation);
  // Runs an operation of any kind and returns when the operation is done. start() and run() throw InternalError if
  // counts or members do not fit the group.
  void run(const Operation& operation);

  Work start_all_reduce(void* data, int64_t count, DataType type, Reduction reduction) {
    return start(Operation::all_reduce(data, count, type, reduction));
  }
  void all_reduce(void* data, int64_t count, DataType type, Reduction reduction = Reduction::sum) {
    run(Operation::all_reduce(data, count, type, reduction));
  }

  // Reduces a vector and gives each member one part. `input` has sum(counts) elements. Member i gets the reduction of
  // its part: counts[i] elements after the parts of earlier members. `output` may be the member's own part of `input`;
  // the rest of `input` is then unspecified.
  Work start_reduce_scatter(void* input, void* output, std::span<const int64_t> counts, DataType type,
                            Reduction reduction) {
    return start(Operation::reduce_scatter(input, output, counts, type, reduction));
  }
  void reduce_scatter(void* input, void* output, std::span<const int64_t> counts, DataType type) {
    run(Operation::reduce_scatter(input, output, counts, type, Reduction::sum));
  }

  // Gathers the parts of all members. Member i contributes counts[i] elements. `output` has sum(counts) elements, in
  // the order of the members. `input` may be the member's own part of `output`.
  Work start_all_gather(const void* input, void* output, std::span<const int64_t> counts, DataType type) {
    return start(Operation::all_gather(input, output, counts, type));
  }
  void all_gather(const void* input, void* output, std::span<const int64_t> counts, DataType type) {
    run(Operation::all_gather(input, output, counts, type));
  }

  void broadcast(void* data, int64_t count, DataType type, int64_t root) {
    run(Operation::broadcast(data, count, type, root));
  }

  // Returns when all members have called it.
  void barrier() { run({.kind = OperationKind::barrier}); }

  // Messages between two members arrive in the order in which they were sent. The receiver passes the count and type
  // that the sender passed, and both name the same link (Route). A send makes progress without a receiver. Over NCCL,
  // however, a send that is not received yet delays later messages on its link.
  Work start_send(const void* data, int64_t count, DataType type, int64_t to, Route route = {}) {
    return start(Operation::send(data, count, type, to, route));
  }
  void send(const void* data, int64_t count, DataType type, int64_t to) { run(Operation::send(data, count, type, to)); }
  // An implementation may receive the message only in wait(), so a caller with several receives must wait for them in
  // the order of their starts.
  Work start_receive(void* data, int64_t count, DataType type, int64_t from, Route route = {}) {
    return start(Operation::receive(data, count, type, from, route));
  }
  void receive(void* data, int64_t count, DataType type, int64_t from, Route route = {}) {
    run(Operation::receive(data, count, type, from, route));
  }

  // Sends messages between any members at the same time, at most one from each member to each other member. Every
  // member calls this, even if it has no messages.
  void exchange(std::span<const Message> outgoing, std::span<const Message> incoming) {
    run({.kind = OperationKind::exchange,
         .outgoing = {outgoing.begin(), outgoing.end()},
         .incoming = {incoming.begin(), incoming.end()}});
  }

 protected:
  Communicator(std::vector<int64_t> ranks, int64_t rank);

  // Returns an operation that runs inside wait(). The caller must call wait() before this communicator is destroyed.
  Work run_in_wait(const Operation& operation);
  // Performs an exchange by single messages of this communicator. Starts all sends before receiving the first message.
  void exchange_one_by_one(const Operation& operation);

 private:
  // Implement start() and run() for an operation that fits the group.
  virtual Work do_start(const Operation& operation) = 0;
  virtual void do_run(const Operation& operation) = 0;

  void check(const Operation& operation) const;
  void check_member(int64_t member) const;
  void check_other(int64_t member) const;

  const std::vector<int64_t> ranks_;
  const int64_t rank_;
};

// The base of communicators that add something to another communicator's operations. By default it forwards them.
class WrappedCommunicator : public Communicator {
 public:
  // Keeps a reference to `group`, which may be destroyed first.
  explicit WrappedCommunicator(Communicator& group) : Communicator(group.ranks(), group.rank()), group_(group) {}

 protected:
  Communicator& group() const { return group_; }

 private:
  Work do_start(const Operation& operation) override { return group_.start(operation); }
  void do_run(const Operation& operation) override { group_.run(operation); }

  Communicator& group_;
};

}  // namespace copus
