#include "copus/model/part_timer.h"

#include "copus/base/error.h"

namespace copus {
namespace {

thread_local PartTimes* active_times = nullptr;
thread_local bool inside_timer = false;

}  // namespace

PartTimes::PartTimes() {
  COPUS_CHECK(active_times == nullptr, "only one PartTimes at a time");
  active_times = this;
}

PartTimes::~PartTimes() { active_times = nullptr; }

PartTimer::PartTimer(Part part) : part_(part), counting_(active_times != nullptr && !inside_timer) {
  if (!counting_) return;
  inside_timer = true;
  start_ = std::chrono::steady_clock::now();
}

PartTimer::~PartTimer() {
  if (!counting_) return;
  inside_timer = false;
  const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - start_;
  active_times->seconds_[static_cast<size_t>(part_)] += elapsed.count();
}

}  // namespace copus
