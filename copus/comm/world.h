// Represents all ranks of a job from the view of one rank: its number, its groups, health and clock.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "copus/comm/communicator.h"
#include "copus/comm/health.h"
#include "copus/comm/rank_clock.h"
#include "copus/description/cluster_description.h"

namespace copus {

// A group of ranks that a layout uses for communication.
struct GroupUse {
  // Which neighbours exchange messages. none: no members. line: each member and the next one. ring: as in a line, and
  // also the last member and the first. one_way_ring: as in a ring, with a separate link for each direction (Route).
  enum class Messages { none, line, ring, one_way_ring };

  std::vector<int64_t> ranks;  // in the group's order
  bool collectives = true;
  Messages messages = Messages::none;
  bool exchanges = false;
  int64_t collective_bytes = 0;  // of the largest vector in a collective, if known
};

// Used by the rank's main thread.
class World {
 public:
  virtual ~World() = default;
  World(const World&) = delete;
  World& operator=(const World&) = delete;

  int64_t rank() const { return rank_; }
  int64_t size() const { return size_; }

  // Returns the communicator of an ordered list of distinct world ranks, which must include this rank. The communicator
  // is made at the first call and kept. The call does not wait for other ranks, so ranks may make their groups in
  // different orders. Throws InternalError if this rank is not in the list, or a rank is repeated or does not exist.
  Communicator& group(const std::vector<int64_t>& ranks);
  Communicator& everyone();

  // Opens the groups of a layout. Every rank must call this between two steps, with no operation under way and before
  // using its own groups, and must pass the same list of all ranks' groups. If ranks have to cooperate to connect
  // (NCCL), they connect here, and groups that are not in the list may be closed; in other worlds this does nothing.
  // Groups in the list that were already open stay open. Returns, on all ranks, the reason why groups cannot be opened;
  // nothing if all are open.
  [[nodiscard]] virtual std::optional<std::string> prepare(const std::vector<GroupUse>& /*groups*/) { return {}; }
  // Like prepare(), for groups without which the job cannot continue: throws UserError if they cannot be opened.
  void require(const std::vector<GroupUse>& groups);

  // How the ranks' devices are connected, as a line for the user; empty if they are not connected.
  virtual std::string device_connection() const { return ""; }

  // Bytes of this rank's device memory that the connections of its communicators take.
  virtual int64_t communicator_bytes() const { return 0; }
  // The mean costs of the communicators that this job has opened between devices: device memory, and seconds to open
  // one. All costs are zero if the job has opened no such communicator. `context_bytes` is always 0. All ranks get the
  // same values.
  virtual CommunicatorCosts communicator_costs() const { return {}; }

  virtual Health& health() = 0;
  virtual RankClock& clock() = 0;

 protected:
  // `used_by_groups` holds objects that the groups' threads use, or null. It is destroyed after the groups. A derived
  // class must not hold these objects as members, because its members are destroyed before the groups.
  World(int64_t rank, int64_t size, std::shared_ptr<const void> used_by_groups)
      : rank_(rank), size_(size), used_by_groups_(std::move(used_by_groups)) {}

 private:
  // `member`: this rank's position among the ranks.
  virtual std::unique_ptr<Communicator> make_group(const std::vector<int64_t>& ranks, int64_t member) = 0;
  int64_t place_in(const std::vector<int64_t>& ranks) const;

  const int64_t rank_, size_;
  const std::shared_ptr<const void> used_by_groups_;
  std::map<std::vector<int64_t>, std::unique_ptr<Communicator>> groups_;
};

// The base of worlds that wrap another world. It forwards everything that a derived class does not override. The inner
// world is destroyed before the groups of the outer world, because the inner world's threads may still use these
// groups' buffers.
class WrappedWorld : public World {
 public:
  std::optional<std::string> prepare(const std::vector<GroupUse>& groups) override { return inner_->prepare(groups); }
  std::string device_connection() const override { return inner_->device_connection(); }
  int64_t communicator_bytes() const override { return inner_->communicator_bytes(); }
  CommunicatorCosts communicator_costs() const override { return inner_->communicator_costs(); }
  Health& health() override { return inner_->health(); }
  RankClock& clock() override { return inner_->clock(); }

 protected:
  explicit WrappedWorld(std::unique_ptr<World> inner, std::shared_ptr<const void> used_by_groups = nullptr)
      : World(inner->rank(), inner->size(), std::move(used_by_groups)), inner_(std::move(inner)) {}
  // Wraps a world that the caller owns and that outlives this one.
  explicit WrappedWorld(World& inner) : WrappedWorld(inner, inner.rank(), inner.size()) {}
  // Wraps `inner` as a world of only `size` of its ranks, in which this rank has the number `rank`.
  WrappedWorld(World& inner, int64_t rank, int64_t size)
      : World(rank, size, nullptr), inner_(std::shared_ptr<void>(), &inner) {}

  World& inner() const { return *inner_; }
  // A group that forwards everything.
  std::unique_ptr<Communicator> make_group(const std::vector<int64_t>& ranks, int64_t member) override;

 private:
  const std::shared_ptr<World> inner_;
};

// How long a wait may last before the ranks that are missing count as failed.
inline constexpr double default_wait_seconds = 600;

}  // namespace copus
