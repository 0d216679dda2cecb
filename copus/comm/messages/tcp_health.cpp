#include "copus/comm/messages/tcp_health.h"

#include <unistd.h>

#include <algorithm>
#include <sstream>
#include <string_view>
#include <utility>

#include "copus/base/error.h"
#include "copus/comm/background_thread.h"

namespace copus {

namespace {

using std::chrono::milliseconds;

constexpr auto look_interval = milliseconds(25);
constexpr auto heartbeat_interval = milliseconds(200);
// Rank 0 gets so much time to answer a report. A rank that it does not answer goes by its own report.
constexpr auto longest_decision = milliseconds(700);
constexpr auto longest_telling = milliseconds(300);
// The main thread gets so much time to notice a failure, throw, and clean up.
constexpr auto grace = milliseconds(1000);
constexpr auto longest_farewell = milliseconds(5000);
constexpr int exit_code_of_failure = 1;

constexpr char here = 'a';       // "host port": of a rank that has come
constexpr char everyone = 'e';   // the same of all ranks, one line each: they have met
constexpr char heartbeat = 'h';  // "pid" and the place
constexpr char failed = 'f';     // "rank pid told", a line with the place, and the cause
constexpr char leaving = 'l';
constexpr char all_left = 'g';

constexpr std::string_view lost_connection = "its process ended, or the network to its machine broke";

std::string to_text(const TcpAddress& address) { return concat(address.host, ' ', address.port, '\n'); }

std::string to_text(const FailureReport& failure, bool told) {
  return concat(failure.rank, ' ', failure.pid, ' ', told, '\n', failure.place, '\n', failure.cause);
}

}  // namespace

TcpHealth::TcpHealth(const TcpRank& self, TcpDoor door)
    : HeartbeatHealth(self.rank, self.size),
      self_(self),
      door_(std::move(door)),
      links_(self.size),
      addresses_(self.size),
      left_(self.size, false) {
  COPUS_CHECK(is_first(), "rank ", self.rank, " at the door of rank 0");
  watchdog_ = background_thread([this] { watch(); });
}

TcpHealth::TcpHealth(const TcpRank& self, TcpSocket to_first, const std::string& token)
    : HeartbeatHealth(self.rank, self.size), self_(self), links_(1), addresses_(self.size), left_(self.size, false) {
  links_.front() = std::make_unique<TextLink>(std::move(to_first));
  links_.front()->greet(hello(token, self.rank));
  expect(0, 0);
  watchdog_ = background_thread([this] { watch(); });
}

TcpHealth::~TcpHealth() {
  {
    const std::lock_guard lock(mutex());
    stopping_ = true;
    changed().notify_all();
  }
  watchdog_.join();
}

std::vector<TcpAddress> TcpHealth::meet(const TcpAddress& own) {
  std::unique_lock lock(mutex());
  if (is_first()) {
    addresses_.front() = own;
  } else {
    hand_on(here, to_text(own));
  }
  changed().wait(lock, [&] { return met_ || has_failed(); });
  if (met_) return addresses_;
  lock.unlock();
  check();
  return {};
}

void TcpHealth::report(const FailureReport& report) { submit({report}); }

void TcpHealth::report_own_error() {
  submit({{rank(), place_of(rank()), "it ended with an error of its own", ::getpid()}, true});
}

void TcpHealth::submit(const Report& report) {
  std::unique_lock lock(mutex());
  if (has_failed() || ended_) return;
  if (!to_report_) to_report_ = report;
  changed().notify_all();
  changed().wait_for(lock, longest_decision + longest_telling, [&] { return has_failed(); });
  set_failure(report.failure);
}

void TcpHealth::leave() {
  begin_wait();
  {
    std::unique_lock lock(mutex());
    left_[rank()] = true;
    if (!is_first()) hand_on(leaving, "");
    changed().wait(lock, [&] { return ended_ || has_failed(); });
  }
  end_wait();
}

void TcpHealth::watch() {
  std::unique_lock lock(mutex());
  while (true) {
    // It looks at intervals and not at each heartbeat, of which rank 0 gets thousands a second from hundreds of ranks.
    changed().wait_for(lock, look_interval, [&] { return stopping_ || (to_report_ && !handed_on_); });
    const Clock::time_point now = Clock::now();
    if (door_) admit_guests();
    for (int64_t other = 0; other < std::ssize(links_); ++other) listen_to(other, now);
    if (is_first()) {
      begin_if_all_came(now);
      end_if_all_left(now);
    }
    see_to_reports(now);
    beat(now);
    for (const auto& link : links_) {
      if (link) link->exchange();
    }
    if (stopping_ || ended_ || has_failed()) break;
  }
  see_to_the_end(lock);
}

void TcpHealth::admit_guests() {
  for (TcpDoor::Guest& guest : door_->admit()) {
    std::unique_ptr<TextLink>& link = links_[guest.rank];
    if (link || guest.rank == 0 || met_) continue;
    link = std::make_unique<TextLink>(std::move(guest.socket));
    expect(guest.rank, 0);
  }
}

// `other`: the rank at the other end.
void TcpHealth::listen_to(int64_t other, Clock::time_point now) {
  std::unique_ptr<TextLink>& link = links_[other];
  if (!link) return;
  link->exchange();
  while (const auto text = link->next()) take(other, *text, now);
  if (!link->is_over()) return;
  const bool in_order = is_first() ? left_[other] : ended_;
  if (!in_order && !has_failed()) decide({{other, signs_of(other).place, std::string(lost_connection)}});
  link.reset();
}

void TcpHealth::take(int64_t sender, const TextLink::Text& text, Clock::time_point now) {
  std::istringstream words(text.content);
  switch (text.kind) {
    case here: {
      TcpAddress& address = addresses_[sender];
      words >> address.host >> address.port;
      return;
    }
    case everyone:
      for (TcpAddress& address : addresses_) words >> address.host >> address.port;
      set_met();
      return;
    case heartbeat: {
      int64_t pid = 0;
      words >> pid;
      words.get();
      std::string place;
      std::getline(words, place);
      hear(sender, now, pid, place);
      return;
    }
    case failed: {
      Report report;
      words >> report.failure.rank >> report.failure.pid >> report.told;
      words.get();
      std::getline(words, report.failure.place);
      std::getline(words, report.failure.cause);
      if (!has_failed() && report.failure.rank < size()) decide(report);
      return;
    }
    case leaving:
      left_[sender] = true;
      expect_no_more(sender);
      return;
    case all_left:
      ended_ = true;
      changed().notify_all();
      return;
    default:
      return;
  }
}

// Rank 0 decides. Only that rank 0 itself is silent, the others decide.
void TcpHealth::see_to_reports(Clock::time_point now) {
  if (const auto found = find_failure(now)) {
    if (is_first() || found->rank == 0) decide({*found});
    if (!to_report_) to_report_ = {*found};
  }
  if (!to_report_ || has_failed()) return;
  if (is_first() || (handed_on_ && now - *handed_on_ > longest_decision)) {
    decide(*to_report_);
  } else if (!handed_on_) {
    handed_on_ = now;
    hand_on(failed, to_text(to_report_->failure, to_report_->told));
  }
}

void TcpHealth::hand_on(char kind, const std::string& content) {
  if (links_.front()) links_.front()->send(kind, content);
}

void TcpHealth::begin_if_all_came(Clock::time_point now) {
  if (met_ || has_failed()) return;
  std::string all;
  for (int64_t other = 0; other < size(); ++other) {
    const TcpAddress& address = addresses_[other];
    all += to_text(address);
    if (address.port != 0) continue;
    if (std::chrono::duration<double>(now - started_).count() > self_.wait_seconds) {
      decide({{other, "the start of the job", concat("did not come within ", self_.wait_seconds, " s")}});
    }
    return;
  }
  send_to_all(everyone, all);
  for (const auto& link : links_) {  // so that no heartbeat, of which the first says who this is, queues behind them
    if (link) link->exchange();
  }
  set_met();
}

// The next heartbeat, which tells the others who this is, goes out at once.
void TcpHealth::set_met() {
  met_ = true;
  last_beat_ = {};
  changed().notify_all();
}

void TcpHealth::end_if_all_left(Clock::time_point now) {
  const auto missing = std::find(left_.begin(), left_.end(), false);
  if (missing == left_.end()) {
    send_to_all(all_left, "");
    ended_ = true;
    changed().notify_all();
    return;
  }
  if (!first_left_ && std::find(left_.begin(), left_.end(), true) != left_.end()) first_left_ = now;
  if (first_left_ && std::chrono::duration<double>(now - *first_left_).count() > self_.wait_seconds) {
    decide({{missing - left_.begin(), "",
             concat("kept others waiting at the end of the job for ", self_.wait_seconds, " s")}});
  }
}

void TcpHealth::beat(Clock::time_point now) {
  if (now - last_beat_ < heartbeat_interval) return;
  last_beat_ = now;
  send_to_all(heartbeat, concat(::getpid(), '\n', own_place()));
}

// A rank that takes nothing gets no heartbeats, which would fill the memory here.
void TcpHealth::send_to_all(char kind, const std::string& content) {
  for (const auto& link : links_) {
    if (link && (kind != heartbeat || link->all_sent())) link->send(kind, content);
  }
}

// Ends the job with this failure: for all ranks where this is rank 0, and else for this one.
void TcpHealth::decide(Report report) {
  if (has_failed()) return;
  FailureReport& failure = report.failure;
  if (failure.rank >= 0) {
    const Signs& signs = signs_of(failure.rank);
    if (failure.place.empty()) failure.place = signs.place;
    if (failure.pid == 0) failure.pid = signs.pid;
  }
  if (is_first()) send_to_all(failed, to_text(failure, report.told));
  if (self_.watch && tells_user(report)) announce(failure);
  failure.announced = self_.watch;
  set_failure(failure);
}

bool TcpHealth::tells_user(const Report& report) const {
  const int64_t in_machine = report.failure.rank - self_.first_of_machine;
  const bool failed_here = in_machine >= 0 && in_machine < self_.num_of_machine;
  if (failed_here && report.told) return false;
  return rank() == self_.first_of_machine + (in_machine == 0 ? 1 : 0);
}

// Sends what is still to be said. In a job that has failed, sees to it that this rank ends.
void TcpHealth::see_to_the_end(std::unique_lock<std::mutex>& lock) {
  const bool in_failure = has_failed();
  const auto flush_end = Clock::now() + (in_failure ? longest_telling : longest_farewell);
  // At a good end rank 0 lets the others hang up first, so that nothing that it has sent them is lost.
  const auto is_done = [&](const auto& link) {
    return !link || link->is_over() || (link->all_sent() && (in_failure || !is_first()));
  };
  while (!std::all_of(links_.begin(), links_.end(), is_done) && Clock::now() < flush_end) {
    for (const auto& link : links_) {
      if (link) link->exchange();
    }
    changed().wait_for(lock, milliseconds(1));
  }
  if (!in_failure) {
    for (auto& link : links_) link.reset();
  }
  if (!in_failure || !self_.watch) return;
  if (!changed().wait_for(lock, grace, [&] { return stopping_; })) ::_exit(exit_code_of_failure);
}

}  // namespace copus
