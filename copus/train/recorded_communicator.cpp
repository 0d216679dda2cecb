#include "copus/train/recorded_communicator.h"

#include <memory>

#include "copus/base/error.h"
#include "copus/comm/profiler_range.h"

namespace copus {

namespace {

constexpr const char* collective = "collective";
constexpr const char* message = "message";

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

template <class Start>
Work RecordedCommunicator::start(const char* category, const char* operation, Start start) {
  const double begin = recorder_.now();
  std::string name = concat(operation, " ", label_);
  const ProfilerRange range(name.c_str());
  return Work(std::make_shared<RecordedWork>(start(), recorder_, category, std::move(name), begin));
}

template <class Operate>
void RecordedCommunicator::record(const char* category, const char* operation, Operate operate) {
  const double begin = recorder_.now();
  const std::string name = concat(operation, " ", label_);
  const ProfilerRange range(name.c_str());
  operate();
  recorder_.add_communication(category, name, begin, begin);
}

Work RecordedCommunicator::start_all_reduce(void* data, int64_t count, DataType type, Reduction reduction) {
  return start(collective, "all_reduce", [&] { return group_.start_all_reduce(data, count, type, reduction); });
}

Work RecordedCommunicator::start_reduce_scatter(void* input, void* output, std::span<const int64_t> counts,
                                                DataType type, Reduction reduction) {
  return start(collective, "reduce_scatter",
               [&] { return group_.start_reduce_scatter(input, output, counts, type, reduction); });
}

Work RecordedCommunicator::start_all_gather(const void* input, void* output, std::span<const int64_t> counts,
                                            DataType type) {
  return start(collective, "all_gather", [&] { return group_.start_all_gather(input, output, counts, type); });
}

Work RecordedCommunicator::start_broadcast(void* data, int64_t count, DataType type, int64_t root) {
  return start(collective, "broadcast", [&] { return group_.start_broadcast(data, count, type, root); });
}

Work RecordedCommunicator::start_send(const void* data, int64_t count, DataType type, int64_t to) {
  return start(message, "send", [&] { return group_.start_send(data, count, type, to); });
}

void RecordedCommunicator::all_reduce(void* data, int64_t count, DataType type, Reduction reduction) {
  record(collective, "all_reduce", [&] { group_.all_reduce(data, count, type, reduction); });
}

void RecordedCommunicator::reduce_scatter(void* input, void* output, std::span<const int64_t> counts, DataType type) {
  record(collective, "reduce_scatter", [&] { group_.reduce_scatter(input, output, counts, type); });
}

void RecordedCommunicator::all_gather(const void* input, void* output, std::span<const int64_t> counts, DataType type) {
  record(collective, "all_gather", [&] { group_.all_gather(input, output, counts, type); });
}

void RecordedCommunicator::broadcast(void* data, int64_t count, DataType type, int64_t root) {
  record(collective, "broadcast", [&] { group_.broadcast(data, count, type, root); });
}

void RecordedCommunicator::send(const void* data, int64_t count, DataType type, int64_t to) {
  record(message, "send", [&] { group_.send(data, count, type, to); });
}

void RecordedCommunicator::receive(void* data, int64_t count, DataType type, int64_t from) {
  record(message, "receive", [&] { group_.receive(data, count, type, from); });
}

void RecordedCommunicator::barrier() {
  record(collective, "barrier", [&] { group_.barrier(); });
}

void RecordedCommunicator::exchange(std::span<const Message> outgoing, std::span<const Message> incoming) {
  record(message, "exchange", [&] { group_.exchange(outgoing, incoming); });
}

}  // namespace copus
