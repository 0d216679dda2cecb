#include "copus/comm/operation.h"

#include <numeric>

namespace copus {

namespace {

int64_t sum_of(std::span<const int64_t> counts) { return std::accumulate(counts.begin(), counts.end(), int64_t{0}); }

}  // namespace

const char* to_string(OperationKind kind) {
  switch (kind) {
    case OperationKind::all_reduce:
      return "all_reduce";
    case OperationKind::reduce_scatter:
      return "reduce_scatter";
    case OperationKind::all_gather:
      return "all_gather";
    case OperationKind::broadcast:
      return "broadcast";
    case OperationKind::barrier:
      return "barrier";
    case OperationKind::send:
      return "send";
    case OperationKind::receive:
      return "receive";
    case OperationKind::exchange:
      return "exchange";
  }
  return "";
}

Operation Operation::all_reduce(void* data, int64_t count, DataType type, Reduction reduction) {
  return {.kind = OperationKind::all_reduce,
          .input = data,
          .output = data,
          .count = count,
          .type = type,
          .reduction = reduction};
}

Operation Operation::reduce_scatter(const void* input, void* output, std::span<const int64_t> counts, DataType type,
                                    Reduction reduction) {
  return {.kind = OperationKind::reduce_scatter,
          .input = input,
          .output = output,
          .count = sum_of(counts),
          .counts = {counts.begin(), counts.end()},
          .type = type,
          .reduction = reduction};
}

Operation Operation::all_gather(const void* input, void* output, std::span<const int64_t> counts, DataType type) {
  return {.kind = OperationKind::all_gather,
          .input = input,
          .output = output,
          .count = sum_of(counts),
          .counts = {counts.begin(), counts.end()},
          .type = type};
}

Operation Operation::broadcast(void* data, int64_t count, DataType type, int64_t root) {
  return {.kind = OperationKind::broadcast, .input = data, .output = data, .count = count, .type = type, .peer = root};
}

Operation Operation::send(const void* data, int64_t count, DataType type, int64_t to) {
  return {.kind = OperationKind::send, .input = data, .count = count, .type = type, .peer = to};
}

Operation Operation::receive(void* data, int64_t count, DataType type, int64_t from) {
  return {.kind = OperationKind::receive, .output = data, .count = count, .type = type, .peer = from};
}

Operation Operation::exchange(std::span<const Message> outgoing, std::span<const Message> incoming) {
  return {.kind = OperationKind::exchange,
          .outgoing = {outgoing.begin(), outgoing.end()},
          .incoming = {incoming.begin(), incoming.end()}};
}

bool Operation::is_message() const {
  return kind == OperationKind::send || kind == OperationKind::receive || kind == OperationKind::exchange;
}

VectorPart Operation::part_of(int64_t member) const {
  return {sum_of(std::span(counts).first(member)) * size_of(type), counts[member] * size_of(type)};
}

VectorPart Operation::input_of(int64_t member) const {
  if (kind == OperationKind::all_gather) return part_of(member);
  const bool gives = kind != OperationKind::receive && (kind != OperationKind::broadcast || member == peer);
  return gives ? VectorPart{0, bytes()} : VectorPart{};
}

VectorPart Operation::output_of(int64_t member) const {
  if (kind == OperationKind::reduce_scatter) return part_of(member);
  const bool takes = kind != OperationKind::send && (kind != OperationKind::broadcast || member != peer);
  return takes ? VectorPart{0, bytes()} : VectorPart{};
}

}  // namespace copus
