// The process that has started this one: whether it is gone, and whether it stands still.
#pragma once

#include <cstdint>

namespace copus {

class ParentProcess {
 public:
  // The parent that this process has now.
  ParentProcess();

  int64_t pid() const { return pid_; }
  // Whether it has ended: another process is the parent of this one then.
  bool is_gone() const;
  // Looks, `seconds` after the look before. True once each time that the process has been stopped for two seconds. Of
  // the time between two looks at most half a second counts, since this process may have been stopped as well.
  bool has_stopped(double seconds);

 private:
  int64_t pid_;
  double stopped_seconds_ = 0;
};

}  // namespace copus
