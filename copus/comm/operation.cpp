#include "copus/comm/operation.h"

#include <array>
#include <numeric>

namespace copus {

namespace {

int64_t sum_of(std::span<const int64_t> counts) { return std::accumulate(counts.begin(), counts.end(), int64_t{0}); }

}  // namespace

const char* to_string(OperationKind kind) {
  constexpr std::array names = {"all_reduce", "reduce_scatter", "all_gather", "broadcast",
                                "barrier",    "send",           "receive",    "exchange"};
  return names[static_cast<int>(kind)];
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
