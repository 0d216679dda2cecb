// Records a rank's actions in a step as they happen: for the timeline, for finding stragglers, and for messages about
// what a rank was doing when it failed.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "copus/base/error.h"
#include "copus/comm/world.h"
#include "copus/performance/measured/stragglers.h"
#include "copus/report/viewers/timeline.h"

namespace copus {

// Not thread-safe: for the rank's main thread.
class StepRecorder {
 public:
  explicit StepRecorder(World& world) : world_(world) {}

  double now() const { return world_.clock().now(); }

  // Begins a step (counted from 1). Keeps its events only with `trace`.
  void begin_step(int64_t step, bool trace);

  struct Computation {
    const char* category;  // as in TimelineEvent
    const char* name;
    std::optional<StepPart> part;  // the part to which its time is added
    int64_t chunk = -1;
    int64_t micro_batch = -1;
  };
  // Begins a computation at `place` (text such as "backward of micro-batch 3"), which ends the previous computation.
  void begin(const Computation& computation, const std::string& place);
  void end();

  // Runs `work` as a separate computation. The interrupted computation or wait continues afterwards; a computation then
  // becomes a new event.
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

  // Begins a wait at `place`.
  void wait_at(const std::string& place);

  // Runs `wait`, with the rank at `place` (text for messages). The interrupted computation or wait continues afterwards
  // as the same event. Before the run has set its first place, `place` is not reported.
  template <class Wait>
  void wait_aside(const std::string& place, const Wait& wait) {
    if (told_.empty()) return wait();
    const std::string told_before = told_;
    be_at(concat("step ", step_, ", ", place));
    wait();
    be_at(told_before);
  }

  // Reports to the other ranks that this rank is at `place`, a text that names the step or the work between steps.
  void be_at(const std::string& place);

  // Records a communication from `begin` until now, for which the rank has waited since `waiting_since`.
  void add_communication(const char* category, const std::string& name, double begin, double waiting_since);

  // Returns the seconds of computation since the last call, without waits.
  PartSeconds take_seconds() { return std::exchange(seconds_, {}); }
  // Returns the events of all traced steps.
  const std::vector<TimelineEvent>& events() const { return events_; }

 private:
  World& world_;
  int64_t step_ = 0;
  bool trace_ = false;
  std::string place_;  // within the step
  std::string told_;
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
