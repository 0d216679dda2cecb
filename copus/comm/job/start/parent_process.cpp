#include "copus/comm/job/start/parent_process.h"

#include <unistd.h>

#include <algorithm>

#include "copus/comm/health/process_state.h"

namespace copus {

namespace {

constexpr double stopped_after_seconds = 2, longest_look_at_parent = 0.5;

}  // namespace

ParentProcess::ParentProcess() : pid_(::getppid()) {}

bool ParentProcess::is_gone() const { return ::getppid() != pid_; }

bool ParentProcess::has_stopped(double seconds) {
  if (process_state(pid_) != ProcessState::stopped) {
    stopped_seconds_ = 0;
    return false;
  }
  const double before = stopped_seconds_;
  stopped_seconds_ += std::min(seconds, longest_look_at_parent);
  return before < stopped_after_seconds && stopped_seconds_ >= stopped_after_seconds;
}

}  // namespace copus
