#include "copus/comm/messages/tcp_health.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <sstream>
#include <utility>

#include "copus/base/error.h"
#include "copus/comm/background_thread.h"
#include "copus/comm/health/shared_health.h"

namespace copus {

namespace {

using std::chrono::milliseconds;

// How often the member checks for late events, in addition to each time that something arrives.
constexpr auto look_interval = milliseconds(50);
constexpr auto longest_telling = milliseconds(300);
// The time for the main thread to notice a failure, throw, and clean up.
constexpr auto grace = milliseconds(1000);
constexpr auto longest_farewell = milliseconds(5000);
constexpr int exit_code_of_failure = 1;

TcpAddress address_of(const std::string& card) {
  TcpAddress address;
  std::istringstream(card) >> address.host >> address.port;
  return address;
}

}  // namespace

TcpHealth::TcpHealth(const TcpRank& self, std::optional<TcpDoor> door)
    : HeartbeatHealth(self.rank, self.size, self.wait_seconds, self.started),
      self_(self),
      bell_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)),
      door_(std::move(door)) {
  COPUS_CHECK(bell_.is_open(), std::strerror(errno));
  watchdog_ = background_thread([this] { watch(); });
}

void TcpHealth::join_parent(TcpSocket to_parent, const std::string& token) {
  const std::lock_guard lock(mutex());
  const int64_t parent = member().tree().parent();
  const auto [link, is_new] = links_.emplace(parent, std::move(to_parent));
  COPUS_CHECK(is_new && rank() > 0, "rank ", rank(), " joins rank ", parent);
  link->second.greet(hello(token, rank()));
  member().connect(parent, Clock::now());
  wake();
}

void TcpHealth::miss_parent() {
  std::unique_lock lock(mutex());
  member().miss_parent();
  wake();
  changed().wait(lock, [&] { return has_failed(); });
  lock.unlock();
  throw RankFailure(*failure());
}

TcpHealth::~TcpHealth() {
  {
    const std::lock_guard lock(mutex());
    stopping_ = true;
    changed().notify_all();
    wake();
  }
  watchdog_.join();
}

void TcpHealth::wake() {
  const uint64_t once = 1;
  // This can only fail if the bell has already been rung.
  [[maybe_unused]] const ssize_t written = ::write(bell_.descriptor(), &once, sizeof once);
}

std::vector<TcpAddress> TcpHealth::meet(const TcpAddress& own,
                                        const std::function<std::optional<FailureReport>()>& failed_meanwhile) {
  std::unique_lock lock(mutex());
  member().come(concat(own.host, ' ', own.port));
  wake();
  while (!changed().wait_for(lock, look_interval, [&] { return member().has_met() || has_failed(); })) {
    lock.unlock();
    const std::optional<FailureReport> failure = failed_meanwhile ? failed_meanwhile() : std::nullopt;
    if (failure) report(*failure);
    lock.lock();
  }
  if (!member().has_met()) {
    lock.unlock();
    check();
    return {};
  }
  std::vector<TcpAddress> addresses;
  for (const std::string& card : member().cards()) addresses.push_back(address_of(card));
  return addresses;
}

void TcpHealth::report_own_error() { submit({{rank(), place_of(rank()), own_error_cause, ::getpid()}, true}); }

void TcpHealth::leave() {
  begin_wait();
  {
    std::unique_lock lock(mutex());
    member().leave(Clock::now());
    wake();
    changed().wait(lock, [&] { return member().has_ended() || has_failed(); });
  }
  end_wait();
}

void TcpHealth::watch() {
  std::unique_lock lock(mutex());
  while (true) {
    const Clock::time_point now = Clock::now();
    if (member().has_met()) door_.reset();  // all ranks have met
    if (door_) admit_guests(now);
    for (auto& [neighbour, link] : links_) listen_to(neighbour, link, now);
    look(now);
    send_texts();
    see_to_decision();
    if (member().has_met() || member().has_ended()) changed().notify_all();
    if (stopping_ || member().has_ended() || has_failed()) break;

    std::vector<pollfd> watched = descriptors();
    lock.unlock();
    ::poll(watched.data(), watched.size(), look_interval.count());
    lock.lock();
    uint64_t rings = 0;
    [[maybe_unused]] const ssize_t read = ::read(bell_.descriptor(), &rings, sizeof rings);
  }
  see_to_the_end(lock);
}

std::vector<pollfd> TcpHealth::descriptors() const {
  std::vector<pollfd> descriptors = {{bell_.descriptor(), POLLIN, 0}};
  for (const auto& [neighbour, link] : links_) {
    if (link.is_over()) continue;
    const short wanted = link.all_sent() ? POLLIN : POLLIN | POLLOUT;
    descriptors.push_back({link.descriptor(), wanted, 0});
  }
  if (door_) door_->add_descriptors(descriptors);
  return descriptors;
}

void TcpHealth::admit_guests(Clock::time_point now) {
  const std::vector<int64_t> children = member().tree().children();
  for (TcpDoor::Guest& guest : door_->admit()) {
    if (std::find(children.begin(), children.end(), guest.rank) == children.end()) continue;
    if (links_.try_emplace(guest.rank, std::move(guest.socket)).second) member().connect(guest.rank, now);
  }
}

void TcpHealth::listen_to(int64_t neighbour, TextLink& link, Clock::time_point now) {
  link.exchange();
  while (const auto text = link.next()) member().take(neighbour, text->kind, text->content, now);
  if (link.is_over()) member().lose(neighbour);
}

// A heartbeat is skipped while earlier texts to its receiver are queued, because it would only fill this process'
// memory. The first heartbeat carries this rank's pid and must not be skipped. So data are exchanged after each text,
// which empties the queue.
void TcpHealth::send_texts() {
  for (const TreeMember::Text& text : member().take_texts()) {
    TextLink& link = links_.at(text.to);
    if (TreeMember::is_heartbeat(text.kind) && !link.all_sent()) continue;
    link.send(text.kind, text.content);
    link.exchange();
  }
}

void TcpHealth::see_to_decision() {
  if (!member().decision() || has_failed()) return;
  FailureReport failure = member().decision()->failure;
  const bool may_tell = self_.watch && self_.after_failure == AfterFailure::end_process;
  if (may_tell && tells_user(*member().decision())) announce(failure);
  failure.announced = self_.watch;
  set_failure(failure);
}

bool TcpHealth::tells_user(const TreeMember::Decision& decision) const {
  const int64_t in_machine = decision.failure.rank - self_.first_of_machine;
  const bool failed_here = in_machine >= 0 && in_machine < self_.num_of_machine;
  if (failed_here && decision.told) return false;
  return rank() == self_.first_of_machine + (in_machine == 0 ? 1 : 0);
}

// Sends the remaining texts. If the job has failed, makes sure that this rank ends.
void TcpHealth::see_to_the_end(std::unique_lock<std::mutex>& lock) {
  const bool in_failure = has_failed();
  const bool in_order = member().has_ended() && !in_failure;
  const auto flush_end = Clock::now() + (in_order ? longest_farewell : longest_telling);
  // At an orderly end, child ranks close their connections first, so that no text sent to them is lost.
  const auto is_done = [&](const auto& entry) {
    const auto& [neighbour, link] = entry;
    return link.is_over() || (link.all_sent() && (!in_order || neighbour < rank()));
  };
  while (!std::all_of(links_.begin(), links_.end(), is_done) && Clock::now() < flush_end) {
    for (auto& [neighbour, link] : links_) link.exchange();
    changed().wait_for(lock, milliseconds(1));
  }
  if (!in_failure) links_.clear();
  if (!in_failure || !self_.watch || self_.after_failure != AfterFailure::end_process) return;
  if (!changed().wait_for(lock, grace, [&] { return stopping_; })) ::_exit(exit_code_of_failure);
}

}  // namespace copus
