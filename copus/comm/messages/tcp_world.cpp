#include "copus/comm/messages/tcp_world.h"

#include <exception>
#include <optional>
#include <set>
#include <sstream>
#include <utility>
#include <vector>

#include "copus/base/error.h"
#include "copus/base/mix_bits.h"
#include "copus/comm/health/rank_tree.h"
#include "copus/comm/messages/tcp_connections.h"
#include "copus/comm/messages/tcp_transport.h"
#include "copus/comm/queued_communicator.h"
#include "copus/comm/solo_communicator.h"

namespace copus {

namespace {

// What a rank has when it knows its neighbours and not yet the others.
struct Entrance {
  std::unique_ptr<TcpHealth> health;
  TcpDoor door;
};

TcpSocket connect_to(int64_t parent, const TcpAddress& place, const TcpRank& self) {
  TcpSocket socket = start_connecting(place);
  if (finish_connecting(socket, self.wait_seconds)) return socket;
  throw UserError(concat("rank ", self.rank, " cannot reach rank ", parent, " at ", place.host, ":", place.port,
                         "; let the machines reach one another at all ports, and set MASTER_ADDR to the address of ",
                         "rank 0's machine in their common network"));
}

Entrance enter(const TcpRank& self, const TcpMeeting& meeting) {
  const RankTree tree(self.rank, self.size);
  TcpAddress first;
  std::string token;
  if (tree.is_root()) {
    token = make_token();
  } else {
    std::istringstream(meeting.find(0)) >> first.host >> first.port >> token;
  }
  std::optional<TcpDoor> door_of_health;
  if (tree.is_root() || !tree.children().empty()) {
    door_of_health.emplace(meeting.host, token, self.size);
    const TcpAddress& place = door_of_health->address();
    meeting.publish(self.rank, concat(place.host, ' ', place.port, tree.is_root() ? ' ' + token : ""));
  }
  std::optional<TcpSocket> to_parent;
  if (!tree.is_root()) {
    const int64_t parent = tree.parent();
    TcpAddress place = first;
    if (parent > 0) std::istringstream(meeting.find(parent)) >> place.host >> place.port;
    to_parent = connect_to(parent, place, self);
  }
  auto health = std::make_unique<TcpHealth>(self, std::move(door_of_health), std::move(to_parent), token);
  return {std::move(health), TcpDoor(meeting.host, token, self.size)};
}

// What connects a rank with the others.
struct TcpMembership {
  TcpMembership(const TcpRank& its_self, Entrance entrance)
      : self(its_self),
        health(std::move(entrance.health)),
        connections(self.rank, health->meet(entrance.door.address()), std::move(entrance.door)) {}

  const TcpRank self;
  const std::unique_ptr<TcpHealth> health;
  TcpConnections connections;
  RealClock clock{std::chrono::steady_clock::now()};  // from when the ranks met
};

class TcpWorld final : public World {
 public:
  explicit TcpWorld(const std::shared_ptr<TcpMembership>& membership)
      : World(membership->self.rank, membership->self.size, membership), membership_(*membership) {}

  // The others are told before the groups end, whose threads may be waiting for them.
  ~TcpWorld() override {
    if (std::uncaught_exceptions() > exceptions_at_start_) {
      membership_.health->report_own_error();
    } else {
      membership_.health->leave();
    }
  }

  Health& health() override { return *membership_.health; }
  RankClock& clock() override { return membership_.clock; }

 private:
  std::unique_ptr<Communicator> make_group(const std::vector<int64_t>& ranks, int64_t member) override {
    if (ranks.size() == 1) return std::make_unique<SoloCommunicator>(rank());
    // The name follows from the members alone, since ranks may ask for their groups in different orders.
    uint64_t name = 0;
    for (const int64_t each : ranks) name = extend_hash(name, each);
    COPUS_CHECK(names_.insert(name).second, "two groups of ranks have the same name ", name);
    return std::make_unique<QueuedCommunicator>(
        ranks, member,
        std::make_unique<TcpTransport>(ranks, member, name, membership_.connections, *membership_.health,
                                       membership_.self.wait_seconds));
  }

  TcpMembership& membership_;
  const int exceptions_at_start_ = std::uncaught_exceptions();
  std::set<uint64_t> names_;
};

}  // namespace

std::unique_ptr<World> join_tcp(const TcpRank& self, const TcpMeeting& meeting) {
  allow_many_sockets();
  return std::make_unique<TcpWorld>(std::make_shared<TcpMembership>(self, enter(self, meeting)));
}

}  // namespace copus
