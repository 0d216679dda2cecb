// A rank's connection to its launcher in a job on several machines. A launcher may be stopped, or lose its connection
// to the other launchers, while its ranks still run. The other machines then continue without this machine, so its
// ranks must not write any more. Therefore a rank that receives nothing from its launcher ends itself before the other
// machines treat it as gone.
#pragma once

#include <cstdint>
#include <mutex>
#include <optional>
#include <thread>

#include "copus/comm/descriptor.h"
#include "copus/comm/health.h"
#include "copus/comm/job/member/control_socket.h"

namespace copus {

// The interval of signs of life from launchers to their ranks and to each other.
inline constexpr double sign_of_life_seconds = 0.5;
// A process ends itself if its launcher is silent for this long; a launcher ends itself if the deciding launcher is. At
// most longest_look_for_signs of the time between two checks is counted, because the checking process may have been
// stopped itself.
inline constexpr double fenced_after_seconds = 2;
inline constexpr double longest_look_for_signs = 0.5;
// A launcher that is silent for this long is treated as lost, with its machine. By then it has ended its ranks and
// itself, even if it got hardly any processor time.
inline constexpr double lost_after_seconds = 4;
static_assert(lost_after_seconds > fenced_after_seconds + 2 * longest_look_for_signs);

class Lifeline {
 public:
  // Takes over the inherited `socket`. A thread reads from it while this object lives.
  explicit Lifeline(Descriptor socket);
  Lifeline(const Lifeline&) = delete;
  Lifeline& operator=(const Lifeline&) = delete;
  ~Lifeline();

  // Returns the failure that the launcher has reported for this epoch or a later one; empty if none.
  std::optional<FailureReport> failure_of(int64_t epoch) const;
  // Until untie(), the launcher's failure report for this epoch or a later one is also passed to `health`.
  void tie(Health& health, int64_t epoch);
  void untie();

 private:
  void listen();
  void tell();

  Descriptor socket_;  // used by the thread
  mutable std::mutex mutex_;
  FromLifeline last_;  // the last message that reported a failure
  Health* health_ = nullptr;
  int64_t epoch_ = 0;  // the epoch of `health_`
  bool told_ = false;
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace copus
