// A rank's tie to its launcher in a job of several machines. Such a launcher may be cut off from the others, or
// stopped, while its ranks go on: then the others go on without this machine, and its ranks may write nothing any more.
// So a rank that does not hear its launcher ends itself, before the others count it as gone.
#pragma once

#include <cstdint>
#include <mutex>
#include <optional>
#include <thread>

#include "copus/comm/descriptor.h"
#include "copus/comm/health.h"
#include "copus/comm/job/control_socket.h"

namespace copus {

// How often launchers show that they are there, each to its ranks and to one another.
inline constexpr double sign_of_life_seconds = 0.5;
// Who does not hear the launcher above for so long ends. Of the time between two looks this much counts at most, since
// whoever looks may have been stopped itself.
inline constexpr double fenced_after_seconds = 2;
inline constexpr double longest_look_for_signs = 0.5;
// A launcher that is not heard for so long is lost with its machine: it has ended its ranks and itself by then, even
// where it hardly got a processor.
inline constexpr double lost_after_seconds = 4;
static_assert(lost_after_seconds > fenced_after_seconds + 2 * longest_look_for_signs);

class Lifeline {
 public:
  // `socket`: the inherited one. A thread listens while this lives.
  explicit Lifeline(Descriptor socket);
  Lifeline(const Lifeline&) = delete;
  Lifeline& operator=(const Lifeline&) = delete;
  ~Lifeline();

  // What the launcher has found to have failed in this epoch or a later one.
  std::optional<FailureReport> failure_of(int64_t epoch) const;
  // Until untie(), reports such a failure to this health too.
  void tie(Health& health, int64_t epoch);
  void untie();

 private:
  void listen();
  void tell();

  Descriptor socket_;  // of the thread
  mutable std::mutex mutex_;
  FromLifeline last_;  // that told of a failure
  Health* health_ = nullptr;
  int64_t epoch_ = 0;  // that `health_` belongs to
  bool told_ = false;
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace copus
