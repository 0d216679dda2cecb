// For tests: a world that belongs to the test's thread, where an owner is asked for.
#pragma once

#include <vector>

#include "copus/comm/world.h"

namespace copus {

class BorrowedWorld final : public World {
 public:
  explicit BorrowedWorld(World& world) : world_(world) {}
  int64_t rank() const override { return world_.rank(); }
  int64_t size() const override { return world_.size(); }
  Communicator& group(const std::vector<int64_t>& ranks) override { return world_.group(ranks); }
  void prepare(const std::vector<GroupUse>& groups) override { world_.prepare(groups); }
  int64_t communicator_bytes() const override { return world_.communicator_bytes(); }
  Health& health() override { return world_.health(); }
  RankClock& clock() override { return world_.clock(); }

 private:
  World& world_;
};

}  // namespace copus
