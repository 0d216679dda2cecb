// Connects ranks on one machine, as processes or threads, through one segment of shared memory. The segment has no name
// in the file system (memfd), so nothing is left behind however the ranks end.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "copus/comm/descriptor.h"
#include "copus/comm/health/watchdog.h"
#include "copus/comm/shared_memory/mapping.h"
#include "copus/comm/world.h"

namespace copus {

// A segment without a name. Its pages take memory only once they are touched. The process that starts the ranks creates
// the segment; the ranks inherit it or open it as /proc/<pid>/fd/<descriptor>.
class SharedSegment {
 public:
  // Makes a segment for `size` ranks, whose clocks count from `start`. exec closes its descriptor unless FD_CLOEXEC is
  // cleared.
  static SharedSegment create(int64_t size,
                              std::chrono::steady_clock::time_point start = std::chrono::steady_clock::now());
  // Throws InternalError if the file is not a segment for `size` ranks.
  static SharedSegment open(Descriptor descriptor, int64_t size);
  // Opens the segment of another process of this machine. Throws UserError if that fails.
  static SharedSegment open(int64_t process, int descriptor, int64_t size);
  // Opens a segment of a launcher, to observe the job from outside. `known` holds the numbers of segments to skip.
  // Returns nothing if the launcher has no further segment. Throws InternalError if shared memory cannot be mapped.
  static std::optional<SharedSegment> find(int64_t launcher, const std::vector<uint64_t>& known);

  int descriptor() const { return descriptor_.number(); }
  std::byte* address() const { return mapping_.get(); }
  // The region of SharedHealth, for processes that monitor the ranks.
  std::byte* health() const;
  std::chrono::steady_clock::time_point start() const;
  int64_t size() const;     // number of ranks
  uint64_t number() const;  // distinguishes it from all others on this machine

 private:
  explicit SharedSegment(Descriptor descriptor);
  Descriptor descriptor_;
  Mapping mapping_;
};

// Joins as `rank`. Several worlds in one process may share the segment (ranks as threads). With `watch`, a watchdog
// thread sends heartbeats. `after_failure` is what the watchdog does if the job has failed and this rank does not
// notice.
std::unique_ptr<World> join_shared_memory(std::shared_ptr<SharedSegment> segment, int64_t rank, int64_t size,
                                          double wait_seconds, bool watch,
                                          AfterFailure after_failure = AfterFailure::end_process);

}  // namespace copus
