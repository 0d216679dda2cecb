#include "copus/train/recording/recorded_communicator.h"

#include <memory>

#include "copus/base/error.h"
#include "copus/comm/gpu/profiler_range.h"

namespace copus {

namespace {

const char* category_of(const Operation& operation) { return operation.is_message() ? "message" : "collective"; }

class RecordedWork : public Work::State {
 public:
  RecordedWork(Work work, StepRecorder& recorder, const char* category, std::string name, double begin)
      : work_(std::move(work)), recorder_(recorder), category_(category), name_(std::move(name)), begin_(begin) {}

  void wait() override {
    const ProfilerRange range(name_.c_str());
    const double waiting_since = recorder_.now();
    work_.wait();
    note(waiting_since);
  }

  bool done() override {
    if (!work_.done()) return false;
    note(recorder_.now());
    return true;
  }

 private:
  void note(double waiting_since) {
    if (noted_) return;
    noted_ = true;
    recorder_.add_communication(category_, name_, begin_, waiting_since);
  }

  Work work_;
  StepRecorder& recorder_;
  const char* category_;
  std::string name_;
  double begin_;
  bool noted_ = false;
};

}  // namespace

Work RecordedCommunicator::do_start(const Operation& operation) {
  const double begin = recorder_.now();
  std::string name = concat(to_string(operation.kind), " ", label_);
  const ProfilerRange range(name.c_str());
  return Work(std::make_shared<RecordedWork>(group().start(operation), recorder_, category_of(operation),
                                             std::move(name), begin));
}

void RecordedCommunicator::do_run(const Operation& operation) {
  const double begin = recorder_.now();
  const std::string name = concat(to_string(operation.kind), " ", label_);
  const ProfilerRange range(name.c_str());
  group().run(operation);
  recorder_.add_communication(category_of(operation), name, begin, begin);
}

}  // namespace copus
