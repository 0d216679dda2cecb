#include "copus/comm/queued_communicator.h"

#include <utility>

#include "copus/base/error.h"

namespace copus {

QueuedCommunicator::QueuedCommunicator(std::vector<int64_t> ranks, int64_t member, std::unique_ptr<Transport> transport)
    : Communicator(std::move(ranks), member), transport_(std::move(transport)), sends_(size()) {
  check_member(member);
}

void QueuedCommunicator::check_counts(std::span<const int64_t> counts) const {
  COPUS_CHECK(static_cast<int64_t>(counts.size()) == size(), counts.size(), " counts for ", size(), " members");
  for (const int64_t count : counts) COPUS_CHECK(count >= 0, "count ", count);
}

void QueuedCommunicator::check_member(int64_t member) const {
  COPUS_CHECK(member >= 0 && member < size(), "member ", member, " of ", size());
}

void QueuedCommunicator::check_other(int64_t member) const {
  check_member(member);
  COPUS_CHECK(member != rank(), "a message between member ", member, " and itself");
}

Work QueuedCommunicator::start_collective(std::function<void()> collective) {
  if (size() > 1) return collectives_.add(std::move(collective));
  collective();
  return {};
}

Work QueuedCommunicator::start_all_reduce(void* data, int64_t count, DataType type, Reduction reduction) {
  return start_collective([=, this] { transport_->all_reduce(data, count, type, reduction); });
}

Work QueuedCommunicator::start_reduce_scatter(void* input, void* output, std::span<const int64_t> counts, DataType type,
                                              Reduction reduction) {
  check_counts(counts);
  return start_collective([=, this, kept = std::vector<int64_t>(counts.begin(), counts.end())] {
    transport_->reduce_scatter(input, output, kept, type, reduction);
  });
}

Work QueuedCommunicator::start_all_gather(const void* input, void* output, std::span<const int64_t> counts,
                                          DataType type) {
  check_counts(counts);
  return start_collective([=, this, kept = std::vector<int64_t>(counts.begin(), counts.end())] {
    transport_->all_gather(input, output, kept, type);
  });
}

Work QueuedCommunicator::start_broadcast(void* data, int64_t count, DataType type, int64_t root) {
  check_member(root);
  return start_collective([=, this] { transport_->broadcast(data, count, type, root); });
}

Work QueuedCommunicator::start_send(const void* data, int64_t count, DataType type, int64_t to) {
  check_other(to);
  const int64_t bytes = count * size_of(type);
  if (sends_[to].idle() && transport_->try_send(data, bytes, to)) return {};
  return sends_[to].add([=, this] { transport_->send(data, bytes, to); });
}

void QueuedCommunicator::all_reduce(void* data, int64_t count, DataType type, Reduction reduction) {
  collectives_.drain();
  transport_->all_reduce(data, count, type, reduction);
}

void QueuedCommunicator::reduce_scatter(void* input, void* output, std::span<const int64_t> counts, DataType type) {
  check_counts(counts);
  collectives_.drain();
  transport_->reduce_scatter(input, output, counts, type, Reduction::sum);
}

void QueuedCommunicator::all_gather(const void* input, void* output, std::span<const int64_t> counts, DataType type) {
  check_counts(counts);
  collectives_.drain();
  transport_->all_gather(input, output, counts, type);
}

void QueuedCommunicator::broadcast(void* data, int64_t count, DataType type, int64_t root) {
  check_member(root);
  collectives_.drain();
  transport_->broadcast(data, count, type, root);
}

void QueuedCommunicator::send(const void* data, int64_t count, DataType type, int64_t to) {
  check_other(to);
  sends_[to].drain();
  transport_->send(data, count * size_of(type), to);
}

void QueuedCommunicator::receive(void* data, int64_t count, DataType type, int64_t from) {
  check_other(from);
  transport_->receive(data, count * size_of(type), from);
}

void QueuedCommunicator::barrier() {
  collectives_.drain();
  transport_->barrier();
}

}  // namespace copus
