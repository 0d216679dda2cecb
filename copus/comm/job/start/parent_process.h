// Watches whether the process that started this process is gone or stopped.
#pragma once

#include <cstdint>

namespace copus {

class ParentProcess {
 public:
  // The current parent of this process.
  ParentProcess();

  int64_t pid() const { return pid_; }
  // Whether the original parent has ended, so that this process has been given another parent.
  bool is_gone() const;
  // Checks the parent, `seconds` after the previous check. Returns true once for each stop that lasts two seconds. At
  // most half a second between two checks is counted, because this process may have been stopped too.
  bool has_stopped(double seconds);

 private:
  int64_t pid_;
  double stopped_seconds_ = 0;
};

}  // namespace copus
