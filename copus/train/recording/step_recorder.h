// Records a rank's actions in a step as they happen: for the timeline, for the detection of stragglers, and for the
// report of what a rank was doing when it failed.
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

// Used only by the rank's main thread.
class StepRecorder {
 public:
  explicit StepRecorder(World& world) : world_(world) {}

  double now() const { return world_.clock().now(); }

  // Begins a step (counted from 1). Its events are kept only with `trace`.
  void begin_step(int64_t step, bool trace);

  struct Computation {
    const char* category;  // as in TimelineEvent
    const char* name;
    std::optional<StepPart> part;  // the part that its time counts towards
    int64_t chunk = -1;
    int64_t micro_batch = -1;
  };
  // Begins a computation at `place`, a text such as "backward of micro-batch 3". The previous computation ends.
  void begin(const Computation& computation, const std::string& place);
  void end();

  // Runs `work` as a computation of its own. The computation or wait that it interrupts continues afterwards; a
  // computation continues as a separate event.
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

  // Records that the rank only waits from here on, at `place`.
  void wait_at(const std::string& place);

  // Runs `wait`, during which the rank is at `place` (words for a message). The interrupted computation or wait
  // continues afterwards, as the same event. Reports nothing before the first place of the run.
  template <class Wait>
  void wait_aside(const std::string& place, const Wait& wait) {
    if (told_.empty()) return wait();
    const std::string told_before = told_;
    be_at(concat("step ", step_, ", ", place));
    wait();
    be_at(told_before);
  }

  // Reports to the other ranks that this rank is at `place`, which names the step or what is done between two steps.
  void be_at(const std::string& place);

  // Records a communication that began at `begin` and has just ended. The rank has waited for it since `waiting_since`.
  void add_communication(const char* category, const std::string& name, double begin, double waiting_since);

  // Seconds of computation since the last call, without waiting.
  PartSeconds take_seconds() { return std::exchange(seconds_, {}); }
  // Events of all traced steps.
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
