// For tests: a world that the test's thread owns, for functions that take ownership.
#pragma once

#include "copus/comm/world.h"

namespace copus {

class BorrowedWorld final : public WrappedWorld {
 public:
  explicit BorrowedWorld(World& world) : WrappedWorld(world) {}
};

}  // namespace copus
