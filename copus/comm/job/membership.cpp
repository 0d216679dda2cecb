#include "copus/comm/job/membership.h"

#include <fcntl.h>
#include <poll.h>

#include <algorithm>
#include <chrono>
#include <numeric>
#include <optional>
#include <utility>

#include "copus/base/error.h"
#include "copus/comm/job/control_socket.h"
#include "copus/comm/shared_memory/shared_memory_world.h"

namespace copus {

namespace {

using std::chrono::steady_clock;

constexpr auto look_again_after = std::chrono::milliseconds(100);
// More than this passes between two looks only if the process was stopped, perhaps with the whole job.
constexpr double longest_look_seconds = 0.5;
// A spare always waits, and so this says no more than that it is in a step: if all ranks wait, that is told.
constexpr double step_seconds_of_spare = 1e-3;

Descriptor taken_over(int descriptor) {
  if (descriptor >= 0) ::fcntl(descriptor, F_SETFD, FD_CLOEXEC);
  return Descriptor(descriptor);
}

}  // namespace

// What the launcher has said, as far as it has been read.
struct Membership::Connection {
  explicit Connection(const RankEnvironment& environment)
      : socket(taken_over(environment.control)), first_segment(taken_over(environment.segment)) {}

  Descriptor socket;  // closed once the launcher has ended the job
  Descriptor first_segment;
  bool regroup = false;
  bool go = false;
  bool stop = false;
  std::optional<FromLauncher> next;

  bool says_to_leave() const { return regroup || go || !socket.is_open(); }

  // Reads what is there, or what comes within a moment.
  void listen(std::chrono::milliseconds moment) {
    pollfd source{socket.number(), POLLIN, 0};
    ::poll(&source, 1, static_cast<int>(moment.count()));
    while (auto message = receive_from_launcher(&socket)) {
      if (message->kind == FromLauncher::Kind::stop) {
        stop = true;
        continue;
      }
      regroup = message->kind == FromLauncher::Kind::regroup;
      go = go || message->kind == FromLauncher::Kind::go;
      if (message->kind == FromLauncher::Kind::epoch) next = std::move(message);
    }
  }
};

Membership::Membership(const RankEnvironment& environment, double wait_seconds)
    : process_(environment.process),
      is_newcomer_(environment.segment < 0),
      wait_seconds_(wait_seconds),
      connection_(std::make_unique<Connection>(environment)) {
  COPUS_CHECK(environment.control >= 0, "this rank was not started by a launcher of ranks that come and go");
  if (is_newcomer_) return;
  epoch_.processes.resize(environment.world_size);
  std::iota(epoch_.processes.begin(), epoch_.processes.end(), 0);
}

Membership::~Membership() = default;

std::unique_ptr<World> Membership::join_next() {
  const auto join = [&](Descriptor segment, int64_t rank) {
    const int64_t size = std::ssize(epoch_.processes);
    return join_shared_memory(std::make_shared<SharedSegment>(SharedSegment::open(std::move(segment), size)), rank,
                              size, wait_seconds_, true, AfterFailure::leave_it_to_the_launcher);
  };
  if (connection_->first_segment.is_open()) return join(std::move(connection_->first_segment), process_);

  send(connection_->socket, FromRank::ready);
  double waited_seconds = 0;
  auto looked = steady_clock::now();
  while (true) {
    connection_->listen(look_again_after);
    if (connection_->go) return nullptr;
    if (connection_->next) {
      FromLauncher next = *std::exchange(connection_->next, std::nullopt);
      epoch_ = std::move(next.epoch);
      return join(std::move(next.segment), next.rank);
    }
    if (!connection_->socket.is_open()) throw RankFailure({-1, "", "the launcher has ended it", 0, true});
    const auto now = steady_clock::now();
    const std::chrono::duration<double> passed = now - std::exchange(looked, now);
    waited_seconds += std::min(passed.count(), longest_look_seconds);
    if (waited_seconds > wait_seconds_) {
      throw RankFailure({-1, "", concat("the launcher did not begin the next epoch within ", wait_seconds_, " s")});
    }
  }
}

bool Membership::regroup_wanted() {
  connection_->listen(std::chrono::milliseconds(0));
  return connection_->regroup;
}

bool Membership::stop_wanted() {
  connection_->listen(std::chrono::milliseconds(0));
  return connection_->stop || !connection_->socket.is_open();
}

void Membership::wait_as_spare(World& world, const std::function<bool()>& wants_to_leave) {
  Health& health = world.health();
  health.set_place("waiting as a spare");
  health.set_expected_step_seconds(step_seconds_of_spare);
  const WaitingForOthers waiting(health);
  bool has_asked = false;
  while (!connection_->says_to_leave() && !health.failure()) {
    if (!has_asked && wants_to_leave()) {
      ask_to_leave();
      has_asked = true;
    }
    connection_->listen(look_again_after);
  }
}

void Membership::ask_to_leave() { send(connection_->socket, FromRank::wants_to_leave); }

}  // namespace copus
