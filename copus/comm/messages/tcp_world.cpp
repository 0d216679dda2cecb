#include "copus/comm/messages/tcp_world.h"

#include <exception>
#include <set>
#include <sstream>
#include <utility>
#include <vector>

#include "copus/base/error.h"
#include "copus/base/mix_bits.h"
#include "copus/comm/messages/tcp_connections.h"
#include "copus/comm/messages/tcp_transport.h"
#include "copus/comm/queued_communicator.h"
#include "copus/comm/solo_communicator.h"

namespace copus {

namespace {

// What a rank has when it knows rank 0 and not yet the others.
struct Entrance {
  std::unique_ptr<TcpHealth> health;
  TcpDoor door;
};

Entrance open_first(const TcpRank& self, const TcpMeeting& meeting) {
  const std::string token = make_token();
  TcpDoor door_of_health(meeting.host, token, self.size);
  const TcpAddress place = door_of_health.address();
  auto health = std::make_unique<TcpHealth>(self, std::move(door_of_health));
  TcpDoor door(meeting.host, token, self.size);
  meeting.publish(concat(place.host, ' ', place.port, ' ', token));
  return {std::move(health), std::move(door)};
}

Entrance go_to_first(const TcpRank& self, const TcpMeeting& meeting) {
  TcpAddress place;
  std::string token;
  std::istringstream(meeting.find()) >> place.host >> place.port >> token;
  TcpSocket to_first = start_connecting(place);
  if (!finish_connecting(to_first, self.wait_seconds)) {
    throw UserError(concat("rank ", self.rank, " cannot reach rank 0 at ", place.host, ":", place.port,
                           "; let the machines reach one another at all ports, and set MASTER_ADDR to the address of ",
                           "rank 0's machine in their common network"));
  }
  const std::string own_host = own_host_of(to_first);
  auto health = std::make_unique<TcpHealth>(self, std::move(to_first), token);
  return {std::move(health), TcpDoor(own_host, token, self.size)};
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
  return std::make_unique<TcpWorld>(
      std::make_shared<TcpMembership>(self, self.rank == 0 ? open_first(self, meeting) : go_to_first(self, meeting)));
}

}  // namespace copus
