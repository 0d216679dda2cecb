#include "copus/comm/communicator.h"

#include "copus/base/error.h"

namespace copus {

Communicator::Communicator(std::vector<int64_t> ranks, int64_t rank) : ranks_(std::move(ranks)), rank_(rank) {
  check_member(rank);
}

Work Communicator::start(const Operation& operation) {
  check(operation);
  COPUS_CHECK(operation.can_be_started(), "an operation that only runs is started: ", to_string(operation.kind));
  return do_start(operation);
}

void Communicator::run(const Operation& operation) {
  check(operation);
  do_run(operation);
}

void Communicator::check_member(int64_t member) const {
  COPUS_CHECK(member >= 0 && member < size(), "member ", member, " of ", size());
}

void Communicator::check_other(int64_t member) const {
  check_member(member);
  COPUS_CHECK(member != rank_, "a message between member ", member, " and itself");
}

void Communicator::check(const Operation& operation) const {
  COPUS_CHECK(operation.count >= 0, "count ", operation.count);
  switch (operation.kind) {
    case OperationKind::all_reduce:
    case OperationKind::barrier:
      return;
    case OperationKind::reduce_scatter:
    case OperationKind::all_gather:
      COPUS_CHECK(std::ssize(operation.counts) == size(), operation.counts.size(), " counts for ", size(), " members");
      for (const int64_t count : operation.counts) COPUS_CHECK(count >= 0, "count ", count);
      return;
    case OperationKind::broadcast:
      return check_member(operation.peer);
    case OperationKind::send:
    case OperationKind::receive:
      COPUS_CHECK(operation.route.link < 2 * size(), "link ", operation.route.link, " of ", size());
      return check_other(operation.peer);
    case OperationKind::exchange:
      for (const auto* messages : {&operation.outgoing, &operation.incoming}) {
        for (const Message& message : *messages) {
          check_other(message.member);
          COPUS_CHECK(message.bytes >= 0, "a message of ", message.bytes, " bytes");
        }
      }
  }
}

Work Communicator::run_in_wait(const Operation& operation) {
  class Later final : public Work::State {
   public:
    Later(Communicator& group, const Operation& operation) : group_(group), operation_(operation) {}
    void wait() override {
      if (!is_done_) group_.do_run(operation_);
      is_done_ = true;
    }
    bool done() override { return is_done_; }

   private:
    Communicator& group_;
    const Operation operation_;
    bool is_done_ = false;
  };
  return Work(std::make_shared<Later>(*this, operation));
}

void Communicator::exchange_one_by_one(const Operation& operation) {
  std::vector<Work> sends;
  for (const Message& message : operation.outgoing) {
    sends.push_back(start_send(message.data, message.bytes, DataType::byte, message.member));
  }
  for (const Message& message : operation.incoming) {
    receive(message.data, message.bytes, DataType::byte, message.member);
  }
  for (const Work& send : sends) send.wait();
}

}  // namespace copus
