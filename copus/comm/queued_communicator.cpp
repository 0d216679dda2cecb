#include "copus/comm/queued_communicator.h"

#include <utility>

#include "copus/comm/rank_failure.h"

namespace copus {

QueuedCommunicator::QueuedCommunicator(std::vector<int64_t> ranks, int64_t member, std::unique_ptr<Transport> transport,
                                       std::shared_ptr<OpenQueues> queues)
    : Communicator(std::move(ranks), member),
      transport_(std::move(transport)),
      queues_(std::move(queues)),
      collectives_(queues_) {
  for (int64_t receiver = 0; receiver < size(); ++receiver) sends_.emplace_back(queues_);
}

Work QueuedCommunicator::do_start(const Operation& operation) {
  if (operation.kind == OperationKind::receive) return run_in_wait(operation);
  const bool is_send = operation.kind == OperationKind::send;
  TaskQueue& queue = is_send ? sends_[operation.peer] : collectives_;
  if (is_send && queue.idle() && transport_->try_send(operation.input, operation.bytes(), operation.peer)) return {};
  return queue.add([this, operation] { perform(operation); });
}

void QueuedCommunicator::do_run(const Operation& operation) {
  try {
    if (operation.kind == OperationKind::send) sends_[operation.peer].drain();
    if (!operation.is_message()) collectives_.drain();
    perform(operation);
  } catch (const RankFailure&) {
    if (queues_) queues_->wait_until_idle();
    throw;
  }
}

void QueuedCommunicator::perform(const Operation& operation) {
  switch (operation.kind) {
    case OperationKind::all_reduce:
      return transport_->all_reduce(operation);
    case OperationKind::reduce_scatter:
      return transport_->reduce_scatter(operation);
    case OperationKind::all_gather:
      return transport_->all_gather(operation);
    case OperationKind::broadcast:
      return transport_->broadcast(operation);
    case OperationKind::barrier:
      return transport_->barrier();
    case OperationKind::send:
      return transport_->send(operation.input, operation.bytes(), operation.peer);
    case OperationKind::receive:
      return transport_->receive(operation.output, operation.bytes(), operation.peer);
    case OperationKind::exchange:
      return exchange_one_by_one(operation);
  }
}

}  // namespace copus
