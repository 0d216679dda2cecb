#include "copus/train/recording/step_recorder.h"

#include "copus/comm/gpu/profiler_range.h"

namespace copus {

void StepRecorder::begin_step(int64_t step, bool trace) {
  step_ = step;
  trace_ = trace;
}

void StepRecorder::begin(const Computation& computation, const std::string& place) {
  wait_at(place);
  open_ = {computation, now()};
  push_profiler_range(place.c_str());
}

void StepRecorder::wait_at(const std::string& place) {
  end();
  place_ = place;
  be_at(concat("step ", step_, ", ", place));
}

void StepRecorder::be_at(const std::string& place) {
  told_ = place;
  world_.health().set_place(place);
}

void StepRecorder::end() {
  if (!open_) return;
  pop_profiler_range();
  const double end = now();
  const Computation& done = open_->computation;
  if (done.part) seconds_[static_cast<size_t>(*done.part)] += end - open_->begin - open_->waited;
  if (trace_) {
    events_.push_back(
        {done.category, done.name, open_->begin, end, step_, done.chunk, done.micro_batch, TimelineTrack::compute});
  }
  open_.reset();
}

void StepRecorder::add_communication(const char* category, const std::string& name, double begin,
                                     double waiting_since) {
  const double end = now();
  if (open_) open_->waited += end - waiting_since;
  if (trace_) events_.push_back({category, name, begin, end, step_, -1, -1, TimelineTrack::communication});
}

}  // namespace copus
