#include "copus/model/kernels/part_timer.h"

#include <c10/core/impl/VirtualGuardImpl.h>

#include <utility>

#include "copus/base/error.h"

namespace copus {
namespace {

thread_local PartTimes* active_times = nullptr;
thread_local bool inside_timer = false;

}  // namespace

PartTimes::PartTimes(at::Device device) : device_(device) {
  COPUS_CHECK(active_times == nullptr, "only one PartTimes at a time");
  active_times = this;
}

PartTimes::~PartTimes() { active_times = nullptr; }

double PartTimes::seconds(Part part) const {
  double seconds = seconds_[static_cast<size_t>(part)];
  for (const Span& span : spans_) {
    if (span.part == part) seconds += span.begin.elapsedTime(span.end) / 1e3;
  }
  return seconds;
}

// Only events with the flag BACKEND_DEFAULT record times.
c10::Event PartTimes::record() const {
  c10::Event event(device_.type(), c10::EventFlag::BACKEND_DEFAULT);
  event.record(c10::impl::VirtualGuardImpl(device_.type()).getStream(device_));
  return event;
}

PartTimer::PartTimer(Part part) : part_(part), counting_(active_times != nullptr && !inside_timer) {
  if (!counting_) return;
  inside_timer = true;
  if (!active_times->device_.is_cpu()) begin_ = active_times->record();
  start_ = std::chrono::steady_clock::now();
}

PartTimer::~PartTimer() {
  if (!counting_) return;
  inside_timer = false;
  if (begin_) {
    active_times->spans_.push_back({part_, *std::move(begin_), active_times->record()});
    return;
  }
  const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - start_;
  active_times->seconds_[static_cast<size_t>(part_)] += elapsed.count();
}

}  // namespace copus
