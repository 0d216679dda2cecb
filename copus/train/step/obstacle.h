// The reason that prevents a switch.
#pragma once

#include <string>

namespace copus {

struct Obstacle {
  std::string reason;              // in words
  bool is_lack_of_memory = false;  // if true, configurations that need as much memory are impossible too
  bool operator==(const Obstacle&) const = default;
};

}  // namespace copus
