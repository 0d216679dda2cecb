#include "copus/comm/messages/tcp_world.h"

#include <algorithm>
#include <chrono>
#include <exception>
#include <optional>
#include <set>
#include <thread>
#include <utility>
#include <vector>

#include "copus/base/error.h"
#include "copus/base/numbers/mix_bits.h"
#include "copus/comm/health/rank_tree.h"
#include "copus/comm/messages/tcp_connections.h"
#include "copus/comm/messages/tcp_place.h"
#include "copus/comm/messages/tcp_transport.h"
#include "copus/comm/queued_communicator.h"
#include "copus/comm/solo_communicator.h"
#include "copus/comm/task_queue.h"

namespace copus {

namespace {

// The state of a rank that knows its neighbours but not the other ranks yet.
struct Entrance {
  std::unique_ptr<TcpHealth> health;
  TcpDoor door;
};

constexpr auto look_again_after = std::chrono::milliseconds(25);

std::optional<FailureReport> failure_meanwhile(const TcpMeeting& meeting) {
  return meeting.failed_meanwhile ? meeting.failed_meanwhile() : std::nullopt;
}

// The connection may have failed because the parent rank failed after it published its address. Waits until that
// failure is known, because it must be reported instead of the connection error.
void wait_for_a_reason(const TcpMeeting& meeting) {
  if (!meeting.failed_meanwhile) return;
  const auto end = std::chrono::steady_clock::now() + std::chrono::duration<double>(meeting.longest_finding_seconds);
  while (std::chrono::steady_clock::now() < end) {
    if (const auto failure = meeting.failed_meanwhile()) throw RankFailure(*failure);
    std::this_thread::sleep_for(look_again_after);
  }
}

TcpSocket connect_to(int64_t parent, const TcpAddress& place, const TcpRank& self, const TcpMeeting& meeting) {
  const std::chrono::duration<double> waited = std::chrono::steady_clock::now() - self.started;
  try {
    TcpSocket socket = start_connecting(place);
    const auto is_useless = [&] { return failure_meanwhile(meeting).has_value(); };
    if (finish_connecting(socket, std::max(0.0, self.wait_seconds - waited.count()), is_useless)) return socket;
  } catch (const UserError&) {
    wait_for_a_reason(meeting);
    throw;
  }
  wait_for_a_reason(meeting);
  throw UserError(concat("rank ", self.rank, " cannot reach rank ", parent, " at ", place.host, ":", place.port,
                         "; let the machines reach one another at all ports, and set MASTER_ADDR to the address of ",
                         "rank 0's machine in their common network"));
}

std::string place_of_first(const TcpMeeting& meeting, const TcpRank& self) {
  if (const std::optional<std::string> found = meeting.find(0)) return *found;
  if (const auto failure = failure_meanwhile(meeting)) throw RankFailure(*failure);
  throw RankFailure(did_not_come(0, self.wait_seconds));
}

// Admits the child ranks and sends them heartbeats before the parent rank has come.
Entrance enter(const TcpRank& self, const TcpMeeting& meeting) {
  const RankTree tree(self.rank, self.size);
  TcpAddress above;  // of the parent; at first rank 0's address
  std::string token;
  if (tree.is_root()) {
    token = make_token();
  } else {
    const TcpPlace first = read_place(place_of_first(meeting, self), "rank 0", /*with_token=*/true);
    above = first.address;
    token = first.token;
  }
  std::optional<TcpDoor> door_of_health;
  std::string place;  // the address of the listening socket, if there is one
  if (tree.is_root() || !tree.children().empty()) {
    const TcpAddress& address = door_of_health.emplace(meeting.host, token, self.size).address();
    place = to_text({address, tree.is_root() ? token : ""});
  }
  auto health = std::make_unique<TcpHealth>(self, std::move(door_of_health));
  try {
    if (!place.empty()) meeting.publish(self.rank, place);
    if (!tree.is_root()) {
      if (tree.parent() > 0) {
        const std::optional<std::string> found = meeting.find(tree.parent());
        if (!found) {
          if (const auto failure = failure_meanwhile(meeting)) throw RankFailure(*failure);
          health->miss_parent();
        }
        above = read_place(*found, concat("rank ", tree.parent()), /*with_token=*/false).address;
      }
      health->join_parent(connect_to(tree.parent(), above, self, meeting), token);
    }
    TcpDoor door(meeting.host, token, self.size);
    return {std::move(health), std::move(door)};
  } catch (const UserError&) {
    health->report_own_error();
    throw;
  } catch (const RankFailure& failure) {
    health->report(failure.report());
    throw;
  }
}

// The connection of a rank to the others.
struct TcpMembership {
  TcpMembership(const TcpRank& its_self, const TcpMeeting& meeting, Entrance entrance)
      : self(its_self),
        parts(meeting.parts),
        health(std::move(entrance.health)),
        connections(self.rank, health->meet(entrance.door.address(), meeting.failed_meanwhile),
                    std::move(entrance.door)) {}

  const TcpRank self;
  const std::function<void(const TcpParting&)> parts;
  const std::unique_ptr<TcpHealth> health;
  TcpConnections connections;
  RealClock clock{self.clock_start.value_or(std::chrono::steady_clock::now())};
  const std::shared_ptr<OpenQueues> queues =
      self.after_failure == AfterFailure::leave_it_to_the_launcher ? std::make_shared<OpenQueues>() : nullptr;
};

class TcpWorld final : public World {
 public:
  explicit TcpWorld(const std::shared_ptr<TcpMembership>& membership)
      : World(membership->self.rank, membership->self.size, membership), membership_(*membership) {}

  // Tells the other ranks that this rank leaves before it destroys the groups, whose threads may be waiting for those
  // ranks.
  ~TcpWorld() override {
    const bool in_good_order = std::uncaught_exceptions() <= exceptions_at_start_;
    if (!in_good_order) membership_.health->report_own_error();
    if (membership_.parts) {
      membership_.parts({membership_.health->failure(), membership_.health->expected_step_seconds()});
    }
    if (in_good_order) membership_.health->leave();
  }

  Health& health() override { return *membership_.health; }
  RankClock& clock() override { return membership_.clock; }

 private:
  std::unique_ptr<Communicator> make_group(const std::vector<int64_t>& ranks, int64_t member) override {
    if (ranks.size() == 1) return std::make_unique<SoloCommunicator>(rank());
    // The name is derived from the members only, because ranks may ask for their groups in different orders.
    uint64_t name = 0;
    for (const int64_t each : ranks) name = extend_hash(name, each);
    COPUS_CHECK(names_.insert(name).second, "two groups of ranks have the same name ", name);
    return std::make_unique<QueuedCommunicator>(
        ranks, member,
        std::make_unique<TcpTransport>(ranks, member, name, membership_.connections, *membership_.health,
                                       membership_.self.wait_seconds),
        membership_.queues);
  }

  TcpMembership& membership_;
  const int exceptions_at_start_ = std::uncaught_exceptions();
  std::set<uint64_t> names_;
};

}  // namespace

std::unique_ptr<World> join_tcp(const TcpRank& self, const TcpMeeting& meeting) {
  allow_many_sockets();
  return std::make_unique<TcpWorld>(std::make_shared<TcpMembership>(self, meeting, enter(self, meeting)));
}

}  // namespace copus
