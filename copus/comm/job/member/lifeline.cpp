#include "copus/comm/job/member/lifeline.h"

#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "copus/comm/background_thread.h"
#include "copus/comm/job/start/poll_timer.h"

namespace copus {

namespace {

constexpr int look_for_signs_milliseconds = 100;
constexpr int exit_code_of_fenced = 1;

}  // namespace

Lifeline::Lifeline(Descriptor socket) : socket_(std::move(socket)) {
  thread_ = background_thread([this] { listen(); });
}

Lifeline::~Lifeline() {
  {
    const std::scoped_lock lock(mutex_);
    stopping_ = true;
  }
  thread_.join();
}

std::optional<FailureReport> Lifeline::failure_of(int64_t epoch) const {
  const std::scoped_lock lock(mutex_);
  return last_.epoch >= epoch ? last_.failure : std::nullopt;
}

void Lifeline::tie(Health& health, int64_t epoch) {
  const std::scoped_lock lock(mutex_);
  health_ = &health;
  epoch_ = epoch;
  told_ = false;
}

void Lifeline::untie() {
  const std::scoped_lock lock(mutex_);
  health_ = nullptr;
}

void Lifeline::listen() {
  double silent_seconds = 0;
  PollTimer timer;
  while (true) {
    pollfd source{socket_.number(), POLLIN, 0};
    ::poll(&source, 1, look_for_signs_milliseconds);
    const std::scoped_lock lock(mutex_);
    if (stopping_) return;
    silent_seconds += std::min(timer.next(), longest_look_for_signs);
    while (auto message = receive_from_lifeline(&socket_)) {
      silent_seconds = 0;
      if (message->failure) last_ = std::move(*message);
    }
    tell();
    // A closed socket needs no action: the launcher has closed it and will end this process soon, or the launcher has
    // died and the kernel ends this process.
    if (!socket_.is_open()) return;
    if (silent_seconds >= fenced_after_seconds) ::_exit(exit_code_of_fenced);
  }
}

void Lifeline::tell() {
  if (health_ == nullptr || last_.epoch < epoch_ || std::exchange(told_, true)) return;
  health_->report(*last_.failure);
}

}  // namespace copus
