// Text of any length from all ranks to one.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "copus/comm/world.h"

namespace copus {

// On world rank 0: what every rank gives, in the order of the ranks; nothing elsewhere. Every rank calls it.
inline std::vector<std::string> gather_bytes(const std::string& mine, World& world) {
  Communicator& everyone = world.everyone();
  if (world.rank() != 0) {
    const auto size = static_cast<int64_t>(mine.size());
    everyone.send(&size, 1, DataType::int64, 0);
    everyone.send(mine.data(), size, DataType::byte, 0);
    return {};
  }
  std::vector<std::string> all = {mine};
  for (int64_t rank = 1; rank < world.size(); ++rank) {
    int64_t size = 0;
    everyone.receive(&size, 1, DataType::int64, rank);
    all.emplace_back(static_cast<size_t>(size), '\0');
    everyone.receive(all.back().data(), size, DataType::byte, rank);
  }
  return all;
}

}  // namespace copus
