#include "copus/comm/job/healing/remote_machine.h"

#include <poll.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "copus/base/error.h"
#include "copus/comm/job/member/lifeline.h"

namespace copus {

namespace {

// The kernel closes the connections of a dying process before it kills the process's children.
constexpr double moment_to_die_seconds = 0.5;
constexpr auto longest_parting = std::chrono::seconds(2);

}  // namespace

int RemoteMachine::descriptor() const { return link_ && !garbled_ && !link_->is_over() ? link_->descriptor() : -1; }

// A launcher that sends invalid messages may still be running. Nothing more is sent to it, so it ends itself as if the
// connection were lost. Its machine is treated as lost only when it must have ended.
std::vector<News> RemoteMachine::hear(double seconds) {
  if (!link_) return {};
  if (garbled_) {
    over_seconds_ += std::min(seconds, longest_look_for_signs);
    return {};
  }
  link_->exchange(seconds);
  std::vector<News> all;
  while (const auto message = link_->next()) {
    auto news = news_from(*message);
    if (!news) {
      garbled_ = true;
      break;
    }
    if (auto* const arrived = std::get_if<Arrived>(&*news)) {
      arrived_ = std::move(*arrived);
    } else {
      all.push_back(std::move(*news));
    }
  }
  garbled_ = garbled_ || link_->is_garbled();
  if (link_->is_over() && !garbled_) over_seconds_ += std::min(seconds, longest_look_for_signs);
  return all;
}

void RemoteMachine::tell(const Order& order) {
  if (link_ && !garbled_) link_->send(packed(order));
}

void RemoteMachine::conclude(int64_t code) {
  tell(Conclude{code});
  concluded_ = true;
}

// Waits for the other end, because closing a connection that has unread data would discard what was sent but not read.
void RemoteMachine::part() {
  constexpr int moment_milliseconds = 10;
  const auto end = std::chrono::steady_clock::now() + longest_parting;
  while (link_ && !garbled_ && !link_->is_over() && std::chrono::steady_clock::now() < end) {
    pollfd source{link_->descriptor(), POLLIN, 0};
    ::poll(&source, 1, moment_milliseconds);
    link_->exchange(0);
    while (link_->next()) {
    }
  }
}

std::optional<std::string> RemoteMachine::loss() const {
  if (concluded_ || !link_) return std::nullopt;
  if (garbled_) {
    if (over_seconds_ < lost_after_seconds) return std::nullopt;
    return "its launcher sent what is no message";
  }
  if (over_seconds_ > moment_to_die_seconds) return "the connection to its launcher broke";
  if (link_->silent_seconds() >= lost_after_seconds) {
    return concat("its launcher was not heard for ", lost_after_seconds, " s");
  }
  return std::nullopt;
}

std::string RemoteMachine::name() const {
  return concat("machine ", number_, arrived_ ? concat(" (host ", arrived_->host, ")") : "");
}

}  // namespace copus
