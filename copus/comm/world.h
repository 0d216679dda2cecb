// All ranks of a job as one of them sees it: who it is, groups to communicate in, health and clock.
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

// A group of ranks that a layout communicates in.
struct GroupUse {
  // Which neighbours send messages to each other: none, each member and the next, or the last and the first as well. In
  // a one-way ring they have a link for each direction (Route).
  enum class Messages { none, line, ring, one_way_ring };

  std::vector<int64_t> ranks;  // in the group's order
  bool collectives = true;
  Messages messages = Messages::none;
  bool exchanges = false;
  int64_t collective_bytes = 0;  // of the largest vector of a collective, as far as it is known
};

// Used by the rank's main thread.
class World {
 public:
  virtual ~World() = default;
  World(const World&) = delete;
  World& operator=(const World&) = delete;

  int64_t rank() const { return rank_; }
  int64_t size() const { return size_; }

  // The communicator of an ordered list of distinct world ranks, this rank among them. It is made at the first call,
  // and then kept. Making one waits for nobody, so ranks may ask for their groups in different orders. Throws
  // InternalError for a list that is no group of this rank.
  Communicator& group(const std::vector<int64_t>& ranks);
  Communicator& everyone();

  // Every rank calls it between two steps, when nothing is under way, with the same list of the groups of all ranks,
  // before it asks for its own of them. Where ranks connect by working together (NCCL) this is when they do so, and
  // when groups that are not in the list may be closed; elsewhere there is nothing to do. Returns on all ranks why
  // groups cannot be opened, or nothing where all are open. Groups of the list that were open before stay open.
  [[nodiscard]] virtual std::optional<std::string> prepare(const std::vector<GroupUse>& /*groups*/) { return {}; }
  // Likewise, where the job cannot do without them. Throws UserError.
  void require(const std::vector<GroupUse>& groups);

  // What connects the devices of the ranks, as a line for the user; empty where none are.
  virtual std::string device_connection() const { return ""; }

  // Memory of this rank's device that its connections take.
  virtual int64_t communicator_bytes() const { return 0; }
  // Mean bytes and seconds of the communicators that this job has opened between devices, the same on all ranks; zero
  // where there are none. `context_bytes` is always 0.
  virtual CommunicatorCosts communicator_costs() const { return {}; }

  virtual Health& health() = 0;
  virtual RankClock& clock() = 0;

 protected:
  // Threads of a group, which end when it is destroyed, use what connects the ranks. Members of a derived class would
  // be gone by then. So a derived class keeps what its groups use in an object of its own, `used_by_groups`, which goes
  // after them. It is null where groups use nothing.
  World(int64_t rank, int64_t size, std::shared_ptr<const void> used_by_groups)
      : rank_(rank), size_(size), used_by_groups_(std::move(used_by_groups)) {}

 private:
  // `member`: this rank's place among the ranks.
  virtual std::unique_ptr<Communicator> make_group(const std::vector<int64_t>& ranks, int64_t member) = 0;
  int64_t place_in(const std::vector<int64_t>& ranks) const;

  const int64_t rank_, size_;
  const std::shared_ptr<const void> used_by_groups_;
  std::map<std::vector<int64_t>, std::unique_ptr<Communicator>> groups_;
};

// The base of worlds that add something to another one, and pass on to it all that they do not override. The world
// within ends before the groups of the one around it, since its threads may be working on buffers that are theirs.
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
  // Around a world that belongs to somebody else, and outlives this one.
  explicit WrappedWorld(World& inner) : WrappedWorld(inner, inner.rank(), inner.size()) {}
  // As the world of `size` of its ranks, of which this one is `rank`.
  WrappedWorld(World& inner, int64_t rank, int64_t size)
      : World(rank, size, nullptr), inner_(std::shared_ptr<void>(), &inner) {}

  World& inner() const { return *inner_; }
  // A group that passes everything on.
  std::unique_ptr<Communicator> make_group(const std::vector<int64_t>& ranks, int64_t member) override;

 private:
  const std::shared_ptr<World> inner_;
};

// How long a wait may last before it counts as a failure of those that are missing.
inline constexpr double default_wait_seconds = 600;

}  // namespace copus
