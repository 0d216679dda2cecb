#include "copus/comm/messages/reduction_rounds.h"

#include <array>
#include <bit>
#include <cstring>

#include "copus/comm/reduce_elements.h"

namespace copus {

std::vector<ReductionRound> reduction_rounds(int64_t size, int64_t member) {
  using Received = ReductionRound::Received;
  const auto places = static_cast<int64_t>(std::bit_floor(static_cast<uint64_t>(size)));
  const int64_t pairs = size - places;
  const bool is_paired = member < 2 * pairs;
  const auto member_at = [&](int64_t place) { return place < pairs ? 2 * place : place + pairs; };

  std::vector<ReductionRound> rounds;
  if (is_paired && member % 2 == 1) {
    rounds.push_back({.send_to = member - 1});
    rounds.push_back({.receive_from = member - 1, .received = Received::instead});
    return rounds;
  }
  if (is_paired) rounds.push_back({.receive_from = member + 1});
  const int64_t place = is_paired ? member / 2 : member - pairs;
  for (int64_t distance = 1; distance < places; distance *= 2) {
    const int64_t peer = member_at(place ^ distance);
    rounds.push_back({peer, peer, peer < member ? Received::before : Received::after});
  }
  if (is_paired) rounds.push_back({.send_to = member + 1});
  return rounds;
}

bool goes_by_rounds(const Operation& all_reduce) {
  const bool is_integer = all_reduce.type == DataType::byte || all_reduce.type == DataType::int64;
  return all_reduce.bytes() <= small_all_reduce_bytes && (is_integer || all_reduce.reduction == Reduction::maximum);
}

void take_in(const std::byte* received, ReductionRound::Received place, std::byte* values, int64_t count, DataType type,
             Reduction reduction) {
  if (place == ReductionRound::Received::instead) {
    if (count > 0) std::memcpy(values, received, static_cast<size_t>(count * size_of(type)));
    return;
  }
  std::array<const std::byte*, 2> sources = {values, received};
  if (place == ReductionRound::Received::before) sources = {received, values};
  reduce_elements(sources, {&values, 1}, count, type, reduction);
}

}  // namespace copus
