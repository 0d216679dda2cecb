// For tests: a world that belongs to the test's thread, where an owner is asked for.
#pragma once

#include "copus/comm/world.h"

namespace copus {

class BorrowedWorld final : public WrappedWorld {
 public:
  explicit BorrowedWorld(World& world) : WrappedWorld(world) {}
};

}  // namespace copus
