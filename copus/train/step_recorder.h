// What a rank does in a step, as it happens: for the timeline, for the search for stragglers, and for whoever asks what
// a rank was doing when it failed.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "copus/comm/world.h"
#include "copus/performance/stragglers.h"
#include "copus/report/timeline.h"

namespace copus {

// Used by the rank's main thread alone.
class StepRecorder {
 public:
  explicit StepRecorder(World& world) : world_(world) {}

  double now() const { return world_.clock().now(); }

  // The step that is about to begin (from 1). Its events are kept only with `trace`.
  void begin_step(int64_t step, bool trace);

  struct Computation {
    const char* category;  // as in TimelineEvent
    const char* name;
    std::optional<StepPart> part;  // that its time counts with
    int64_t chunk = -1;
    int64_t micro_batch = -1;
  };
  // A computation begins, at `place` in words ("backward of micro-batch 3"); one before it ends.
  void begin(const Computation& computation, const std::string& place);
  void end();

  // A computation that `work` does at once, in between: what it interrupts, a computation or a wait, goes on after it,
  // a computation as an event of its own.
  template <class Work>
  void aside(const Computation& computation, const std::string& place, const Work& work) {
    const std::optional<Open> interrupted = open_;
    const std::string place_before = place_;
    begin(computation, place);
    work();
    if (interrupted) {
      begin(interrupted->computation, place_before);
    } else {
      wait_at(place_before);
    }
  }

  // The rank only waits from here, at `place`.
  void wait_at(const std::string& place);

  // A communication that began at `begin` has ended, after the rank has waited for it since `waiting_since`.
  void add_communication(const char* category, const std::string& name, double begin, double waiting_since);

  // Seconds of computing, without those of waiting, since the last call.
  PartSeconds take_seconds() { return std::exchange(seconds_, {}); }
  // Of all traced steps.
  const std::vector<TimelineEvent>& events() const { return events_; }

 private:
  World& world_;
  int64_t step_ = 0;
  bool trace_ = false;
  std::string place_;
  struct Open {
    Computation computation;
    double begin;
    double waited = 0;
  };
  std::optional<Open> open_;
  PartSeconds seconds_{};
  std::vector<TimelineEvent> events_;
};

}  // namespace copus
