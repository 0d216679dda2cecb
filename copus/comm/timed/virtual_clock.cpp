#include "copus/comm/timed/virtual_clock.h"

#include <algorithm>
#include <ctime>

#include "copus/base/error.h"

namespace copus {

namespace {

double thread_seconds() {
  timespec time{};
  COPUS_CHECK(clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time) == 0);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

}  // namespace

VirtualClock::VirtualClock(double flops_per_second)
    : flops_per_second_(flops_per_second), thread_seconds_(thread_seconds()) {}

void VirtualClock::catch_up() {
  if (!is_measured()) return;
  const double thread_now = thread_seconds();
  if (communications_ == 0) seconds_ += thread_now - thread_seconds_;
  thread_seconds_ = thread_now;
}

double VirtualClock::now() {
  catch_up();
  return seconds_;
}

void VirtualClock::advance_to(double seconds) {
  catch_up();
  seconds_ = std::max(seconds_, seconds);
}

void VirtualClock::charge(double flops) {
  if (!is_measured()) seconds_ += flops / flops_per_second_;
}

void VirtualClock::begin_communication() {
  catch_up();
  ++communications_;
}

void VirtualClock::end_communication() {
  catch_up();
  --communications_;
}

}  // namespace copus
