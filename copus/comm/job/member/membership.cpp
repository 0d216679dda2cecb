#include "copus/comm/job/member/membership.h"

#include <fcntl.h>
#include <poll.h>

#include <algorithm>
#include <chrono>
#include <numeric>
#include <optional>
#include <string>
#include <thread>
#include <utility>

#include "copus/base/error.h"
#include "copus/comm/job/meeting/failed_world.h"
#include "copus/comm/job/member/control_socket.h"
#include "copus/comm/job/member/lifeline.h"
#include "copus/comm/messages/tcp_world.h"
#include "copus/comm/shared_memory/shared_memory_world.h"

namespace copus {

namespace {

using std::chrono::steady_clock;

constexpr auto look_again_after = std::chrono::milliseconds(100);
constexpr auto look_for_others_after = std::chrono::milliseconds(5);
// A longer time between two checks means that the process was stopped, perhaps with the whole job.
constexpr double longest_look_seconds = 0.5;
// The step length that a spare rank reports. Any positive value works: it marks the spare as being in a step, so that a
// job in which all ranks wait is reported as a failure.
constexpr double step_seconds_of_spare = 1e-3;
// The time within which the deciding launcher notices a lost machine and reports it. It exceeds lost_after_seconds,
// because the launcher may get hardly any processor time.
constexpr double longest_finding_seconds = lost_after_seconds + 4;

Descriptor taken_over(int descriptor) {
  if (descriptor >= 0) ::fcntl(descriptor, F_SETFD, FD_CLOEXEC);
  return Descriptor(descriptor);
}

}  // namespace

// The messages from the launcher that have been read but not handled yet.
struct Membership::Connection {
  explicit Connection(const RankEnvironment& environment)
      : socket(taken_over(environment.control)), first_segment(taken_over(environment.segment)) {
    if (environment.lifeline >= 0) lifeline.emplace(taken_over(environment.lifeline));
  }

  Descriptor socket;  // closed once the launcher has ended the job
  Descriptor first_segment;
  std::optional<Lifeline> lifeline;  // of ranks on several machines
  bool first_epoch_comes = false;    // without a request
  bool regroup = false;
  bool go = false;
  bool stop = false;
  std::optional<FromLauncher> next;

  bool says_to_leave() const { return regroup || go || !socket.is_open(); }

  // Reads the messages that have arrived or that arrive within `moment`.
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

Membership::Membership(const RankEnvironment& environment, double wait_seconds, OpenMeetingPlace open_meeting_place)
    : environment_(environment),
      open_meeting_place_(std::move(open_meeting_place)),
      process_(environment.process),
      is_newcomer_(environment.process >= environment.world_size),
      wait_seconds_(wait_seconds),
      connection_(std::make_unique<Connection>(environment)) {
  COPUS_CHECK(environment.control >= 0, "this rank was not started by a launcher of ranks that come and go");
  COPUS_CHECK(environment.lifeline < 0 || open_meeting_place_, "ranks of several machines and no place to meet");
  if (is_newcomer_) return;
  connection_->first_epoch_comes = environment.segment < 0;
  epoch_.processes.resize(environment.world_size);
  std::iota(epoch_.processes.begin(), epoch_.processes.end(), 0);
}

Membership::~Membership() = default;

std::unique_ptr<World> Membership::join_next() {
  if (connection_->first_segment.is_open()) {
    return join_epoch({.epoch = epoch_, .rank = process_, .segment = std::move(connection_->first_segment)});
  }
  if (!std::exchange(connection_->first_epoch_comes, false)) send(connection_->socket, {FromRank::Kind::ready});
  double waited_seconds = 0;
  auto looked = steady_clock::now();
  while (true) {
    connection_->listen(look_again_after);
    if (connection_->go) return nullptr;
    if (connection_->next) {
      return join_epoch(*std::exchange(connection_->next, std::nullopt));
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

std::unique_ptr<World> Membership::join_epoch(FromLauncher next) {
  epoch_ = std::move(next.epoch);
  kept_ = std::move(next.kept);
  if (connection_->lifeline) {
    return meet(next.rank, steady_clock::time_point(std::chrono::nanoseconds(next.job_started)));
  }
  const int64_t size = std::ssize(epoch_.processes);
  return join_shared_memory(std::make_shared<SharedSegment>(SharedSegment::open(std::move(next.segment), size)),
                            next.rank, size, wait_seconds_, true, AfterFailure::leave_it_to_the_launcher);
}

// In each epoch, the names at the meeting place and rank 0's token are new. Therefore a late rank of an older epoch
// cannot connect to a listening socket of the new epoch.
std::unique_ptr<World> Membership::meet(int64_t rank, steady_clock::time_point job_started) {
  Lifeline& lifeline = *connection_->lifeline;
  const auto started = steady_clock::now();
  const int64_t number = epoch_.number;
  const auto name = [&](int64_t of_rank) {
    return concat("copus/", environment_.attempt, "/", number, "/tcp/", of_rank);
  };
  const auto tell_launcher = [this, &lifeline](const TcpParting& parting) {
    lifeline.untie();
    send(connection_->socket, {FromRank::Kind::left, parting.failure, parting.expected_step_seconds});
  };
  // Nothing ends the wait for the meeting place early.
  const MeetingPlace place =
      open_meeting_place_(
          {.host = environment_.master_address, .port = environment_.master_port, .wait_seconds = wait_seconds_})
          .value();
  const TcpMeeting meeting{
      .host = own_host_towards(environment_.master_address, environment_.master_port),
      .publish = [&](int64_t of_rank, const std::string& text) { place.publish(name(of_rank), text); },
      .find = [&](int64_t of_rank) -> std::optional<std::string> {
        while (std::chrono::duration<double>(steady_clock::now() - started).count() < wait_seconds_) {
          if (auto text = place.find(name(of_rank))) return text;
          if (lifeline.failure_of(number)) break;
          std::this_thread::sleep_for(look_for_others_after);
        }
        return std::nullopt;
      },
      .failed_meanwhile = [&] { return lifeline.failure_of(number); },
      .longest_finding_seconds = longest_finding_seconds,
      .parts = tell_launcher};
  const int64_t size = std::ssize(epoch_.processes);
  try {
    std::unique_ptr<World> world = join_tcp({.rank = rank,
                                             .size = size,
                                             .wait_seconds = wait_seconds_,
                                             .started = started,
                                             .watch = true,
                                             .after_failure = AfterFailure::leave_it_to_the_launcher,
                                             .clock_start = job_started},
                                            meeting);
    send(connection_->socket, {FromRank::Kind::joined});
    lifeline.tie(world->health(), number);
    return world;
  } catch (const RankFailure& failure) {
    tell_launcher({failure.report()});
    return failed_world(rank, size, failure.report(), job_started);
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

void Membership::ask_to_leave() { send(connection_->socket, {FromRank::Kind::wants_to_leave}); }

void Membership::ask_to_stop() { send(connection_->socket, {FromRank::Kind::wants_to_stop}); }

void Membership::keep(const StateArena& arena) {
  send(connection_->socket, {FromRank::Kind::keeps_arena}, arena.file().number());
}

void Membership::settled() { send(connection_->socket, {FromRank::Kind::settled}); }

void Membership::leave_note(const std::string& note) {
  send(connection_->socket, {.kind = FromRank::Kind::notes, .note = note});
}

void Membership::advances() { send(connection_->socket, {FromRank::Kind::advances}); }

}  // namespace copus
