#include "copus/comm/messages/message_transport.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <utility>

#include "copus/base/error.h"
#include "copus/comm/health/heartbeat_health.h"
#include "copus/comm/messages/reduction_rounds.h"
#include "copus/comm/reduce_elements.h"

namespace copus {

namespace {

// A reduction handles at most this many bytes of a part at a time, which limits its memory to this size times the
// number of ranks.
constexpr int64_t window_bytes = 1 << 20;

std::vector<int64_t> even_counts(int64_t count, int64_t parts) {
  std::vector<int64_t> counts(parts, count / parts);
  for (int64_t i = 0; i < count % parts; ++i) ++counts[i];
  return counts;
}

std::vector<int64_t> offsets_of(std::span<const int64_t> counts) {
  std::vector<int64_t> offsets(counts.size(), 0);
  std::exclusive_scan(counts.begin(), counts.end(), offsets.begin(), int64_t{0});
  return offsets;
}

}  // namespace

MessageTransport::MessageTransport(std::vector<int64_t> ranks, int64_t rank, HeartbeatHealth& health,
                                   double wait_seconds)
    : ranks_(std::move(ranks)), rank_(rank), health_(health), wait_seconds_(wait_seconds) {}

void MessageTransport::blame(int64_t missing, const std::string& cause) {
  const FailureReport report{missing, health_.place_of(missing), cause};
  health_.report(report);
  health_.check();
  throw RankFailure(report);
}

std::string MessageTransport::kept_waiting() const {
  return concat("kept rank ", world_rank(rank_), " waiting for ", wait_seconds_, " s");
}

void MessageTransport::all_reduce(const Operation& operation) {
  if (goes_by_rounds(operation)) return reduce_in_rounds(operation);
  const int64_t element_bytes = size_of(operation.type);
  auto* const data = static_cast<std::byte*>(operation.output);
  if (operation.bytes() > small_all_reduce_bytes) {
    const std::vector<int64_t> counts = even_counts(operation.count, size());
    std::byte* const mine = data + offsets_of(counts)[rank_] * element_bytes;
    reduce_parts(data, mine, counts, operation.type, operation.reduction);
    gather_parts(mine, data, counts, element_bytes);
    return;
  }
  received_.resize(operation.bytes() * size());
  gather_parts(data, received_.data(), std::vector<int64_t>(size(), operation.count), element_bytes);
  std::vector<const std::byte*> sources;
  for (int64_t member = 0; member < size(); ++member) sources.push_back(received_.data() + member * operation.bytes());
  reduce_elements(sources, {&data, 1}, operation.count, operation.type, operation.reduction);
}

void MessageTransport::reduce_in_rounds(const Operation& operation) {
  auto* const values = static_cast<std::byte*>(operation.output);
  received_.resize(operation.bytes());
  const std::unique_ptr<Messages> messages = start(Channel::collective);
  for (const ReductionRound& round : reduction_rounds(size(), rank_)) {
    if (round.receive_from >= 0) messages->receive(received_.data(), operation.bytes(), round.receive_from);
    if (round.send_to >= 0) messages->send(values, operation.bytes(), round.send_to);
    messages->finish();
    if (round.receive_from < 0) continue;
    take_in(received_.data(), round.received, values, operation.count, operation.type, operation.reduction);
  }
}

void MessageTransport::reduce_scatter(const Operation& operation) {
  reduce_parts(static_cast<const std::byte*>(operation.input), static_cast<std::byte*>(operation.output),
               operation.counts, operation.type, operation.reduction);
}

// Every member sends the others their parts and sums its own part. `input` stays unchanged, unless `output` overlaps
// it.
void MessageTransport::reduce_parts(const std::byte* input, std::byte* output, std::span<const int64_t> counts,
                                    DataType type, Reduction reduction) {
  const int64_t element_bytes = size_of(type);
  const int64_t window = window_bytes / element_bytes;
  const int64_t longest = *std::max_element(counts.begin(), counts.end());
  const std::vector<int64_t> offsets = offsets_of(counts);
  const int64_t my_count = counts[rank_];
  const std::byte* my_input = input + offsets[rank_] * element_bytes;
  const int64_t slot_bytes = std::min(window, my_count) * element_bytes;
  received_.resize(slot_bytes * size());
  const std::unique_ptr<Messages> messages = start(Channel::collective);
  std::vector<const std::byte*> sources(size());
  for (int64_t begin = 0; begin < longest; begin += window) {
    const auto length = [&](int64_t part_count) { return std::clamp<int64_t>(part_count - begin, 0, window); };
    const int64_t my_length = length(my_count);
    // Each member starts with its successor, so that not all members send to the same one first.
    for (int64_t step = 1; step < size(); ++step) {
      const int64_t from = (rank_ + size() - step) % size();
      const int64_t to = (rank_ + step) % size();
      std::byte* slot = received_.data() + from * slot_bytes;
      sources[from] = slot;
      messages->receive(slot, my_length * element_bytes, from);
      messages->send(input + (offsets[to] + begin) * element_bytes, length(counts[to]) * element_bytes, to);
    }
    messages->finish();
    if (my_length == 0) continue;
    sources[rank_] = my_input + begin * element_bytes;
    std::byte* const sum = output + begin * element_bytes;
    reduce_elements(sources, {&sum, 1}, my_length, type, reduction);
  }
}

void MessageTransport::all_gather(const Operation& operation) {
  gather_parts(operation.input, static_cast<std::byte*>(operation.output), operation.counts, size_of(operation.type));
}

void MessageTransport::gather_parts(const void* input, std::byte* output, std::span<const int64_t> counts,
                                    int64_t element_bytes) {
  const std::vector<int64_t> offsets = offsets_of(counts);
  const auto part = [&](int64_t member) { return output + offsets[member] * element_bytes; };
  const auto bytes = [&](int64_t member) { return counts[member] * element_bytes; };
  const std::unique_ptr<Messages> messages = start(Channel::collective);
  for (int64_t step = 1; step < size(); ++step) {
    const int64_t from = (rank_ + size() - step) % size();
    messages->receive(part(from), bytes(from), from);
    messages->send(input, bytes(rank_), (rank_ + step) % size());
  }
  if (input != part(rank_) && bytes(rank_) > 0) std::memcpy(part(rank_), input, bytes(rank_));
  messages->finish();
}

// Broadcasts along a binomial tree: in the round with `distance` d, the d members from the root on have the data and
// send them to the next d members.
void MessageTransport::broadcast(const Operation& operation) {
  const int64_t bytes = operation.bytes();
  const int64_t place = (rank_ + size() - operation.peer) % size();
  const std::unique_ptr<Messages> messages = start(Channel::collective);
  for (int64_t distance = 1; distance < size(); distance *= 2) {
    if (place < distance && place + distance < size()) {
      messages->send(operation.output, bytes, (rank_ + distance) % size());
    } else if (place >= distance && place < 2 * distance) {
      messages->receive(operation.output, bytes, (rank_ + size() - distance) % size());
      messages->finish();
    }
  }
  messages->finish();
}

// The dissemination barrier of Hensgen, Finkel and Manber: after the round with distance d, each member has received
// signals, directly or indirectly, from the 2 d - 1 members before it.
void MessageTransport::barrier() {
  const std::unique_ptr<Messages> messages = start(Channel::barrier);
  const std::byte sent{};
  std::byte received{};
  for (int64_t distance = 1; distance < size(); distance *= 2) {
    messages->receive(&received, 1, (rank_ + size() - distance) % size());
    messages->send(&sent, 1, (rank_ + distance) % size());
    messages->finish();
  }
}

void MessageTransport::send(const void* data, int64_t bytes, int64_t to) {
  const std::unique_ptr<Messages> messages = start(Channel::message);
  messages->send(data, bytes, to);
  messages->finish();
}

void MessageTransport::receive(void* data, int64_t bytes, int64_t from) {
  const std::unique_ptr<Messages> messages = start(Channel::message);
  messages->receive(data, bytes, from);
  messages->finish();
}

}  // namespace copus
