// What stands against a switch.
#pragma once

#include <string>

namespace copus {

struct Obstacle {
  std::string reason;              // in words
  bool is_lack_of_memory = false;  // then whatever needs as much will not do either
  bool operator==(const Obstacle&) const = default;
};

}  // namespace copus
