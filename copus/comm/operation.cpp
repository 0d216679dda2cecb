#include "copus/comm/operation.h"

#include <numeric>

#include "copus/base/error.h"

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
  fail_check("a kind of operation", __FILE__, __LINE__, "");
}

Operation Operation::reduce_scatter(const void* input, void* output, std::span<const int64_t> counts, DataType type,
                                    Reduction reduction) {
  return {OperationKind::reduce_scatter,  input, output,   sum_of(counts),
          {counts.begin(), counts.end()}, type,  reduction};
}

Operation Operation::all_gather(const void* input, void* output, std::span<const int64_t> counts, DataType type) {
  return {OperationKind::all_gather, input, output, sum_of(counts), {counts.begin(), counts.end()}, type};
}

bool Operation::is_message() const {
  return kind == OperationKind::send || kind == OperationKind::receive || kind == OperationKind::exchange;
}

bool Operation::can_be_started() const {
  switch (kind) {
    case OperationKind::all_reduce:
    case OperationKind::reduce_scatter:
    case OperationKind::all_gather:
    case OperationKind::broadcast:
    case OperationKind::send:
    case OperationKind::receive:
      return true;
    case OperationKind::barrier:
    case OperationKind::exchange:
      return false;
  }
  fail_check("a kind of operation", __FILE__, __LINE__, "");
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
