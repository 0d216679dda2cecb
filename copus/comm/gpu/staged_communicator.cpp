#include "copus/comm/gpu/staged_communicator.h"

#include <utility>

namespace copus {

namespace {

// Bytes of the device, and where they lie in pinned memory.
struct Stretch {
  void* device;
  std::byte* pinned;
  int64_t bytes;
};

}  // namespace

// How an operation is done in pinned memory.
struct StagedCommunicator::Plan {
  Operation on_host;
  std::vector<Stretch> down, up;  // to be copied before and after it
};

// An operation whose buffer the group works on, until its result is on its way up.
class StagedCommunicator::Staged : public Work::State {
 public:
  Staged(StagedCommunicator& communicator, PinnedPool::Buffer buffer, std::vector<Stretch> up)
      : runtime_(communicator.runtime_),
        pinned_(communicator.pinned_),
        buffer_(std::move(buffer)),
        up_(std::move(up)),
        stream_(runtime_.current_stream()) {}

  void set_work(Work on_host) { on_host_ = std::move(on_host); }

  void wait() override {
    if (settled_) return;
    on_host_.wait();
    for (const Stretch& stretch : up_) runtime_.copy(stretch.device, stretch.pinned, stretch.bytes, stream_);
    if (!up_.empty()) up_there_ = runtime_.record(stream_);
    pinned_.give_back(std::move(buffer_), up_there_);
    settled_ = true;
  }

  bool done() override {
    if (!settled_) {
      if (!on_host_.done()) return false;
      try {
        wait();
      } catch (...) {
        return true;  // with an error, which wait() throws again
      }
    }
    return !up_there_ || up_there_->done();
  }

  bool settled() const { return settled_; }

 private:
  DeviceRuntime& runtime_;
  PinnedPool& pinned_;
  PinnedPool::Buffer buffer_;
  const std::vector<Stretch> up_;
  const DeviceRuntime::Stream stream_;
  Work on_host_;
  bool settled_ = false;
  std::shared_ptr<const DeviceRuntime::Event> up_there_;
};

int64_t StagedCommunicator::bytes_to_stage(const Operation& operation) const {
  if (operation.kind != OperationKind::exchange) {
    return is_on_device(operation.whole(), operation.bytes()) ? operation.bytes() : 0;
  }
  int64_t bytes = 0;
  for (const auto* messages : {&operation.outgoing, &operation.incoming}) {
    for (const Message& message : *messages) {
      if (is_on_device(message.data, message.bytes)) bytes += message.bytes;
    }
  }
  return bytes;
}

StagedCommunicator::Plan StagedCommunicator::plan(const Operation& operation, std::byte* pinned) const {
  Plan plan{operation, {}, {}};
  if (operation.kind == OperationKind::exchange) {
    const auto place = [&](std::vector<Message>& messages, std::vector<Stretch>& stretches) {
      for (Message& message : messages) {
        if (!is_on_device(message.data, message.bytes)) continue;
        stretches.push_back({message.data, pinned, message.bytes});
        message.data = std::exchange(pinned, pinned + message.bytes);
      }
    };
    place(plan.on_host.outgoing, plan.down);
    place(plan.on_host.incoming, plan.up);
    return plan;
  }
  const VectorPart input = operation.input_of(rank()), output = operation.output_of(rank());
  plan.on_host.input = pinned + input.offset;
  plan.on_host.output = pinned + output.offset;
  // The copy down only reads from the device.
  if (input.bytes > 0) plan.down = {{const_cast<void*>(operation.input), pinned + input.offset, input.bytes}};
  if (output.bytes > 0) plan.up = {{operation.output, pinned + output.offset, output.bytes}};
  return plan;
}

Work StagedCommunicator::stage(const Operation& operation, int64_t bytes,
                               const std::function<Work(const Operation& on_host)>& start) {
  std::erase_if(under_way_, [](const std::shared_ptr<Staged>& staged) { return staged->settled(); });
  PinnedPool::Buffer buffer = pinned_.take(bytes);
  Plan plan = this->plan(operation, buffer.data());
  const DeviceRuntime::Stream stream = runtime_.current_stream();
  for (const Stretch& stretch : plan.down) runtime_.copy(stretch.pinned, stretch.device, stretch.bytes, stream);
  if (!plan.down.empty()) runtime_.synchronize(stream);
  auto staged = std::make_shared<Staged>(*this, std::move(buffer), std::move(plan.up));
  under_way_.push_back(staged);
  staged->set_work(start(plan.on_host));
  return Work(std::move(staged));
}

Work StagedCommunicator::do_start(const Operation& operation) {
  const int64_t bytes = bytes_to_stage(operation);
  if (bytes == 0) return group().start(operation);
  return stage(operation, bytes, [&](const Operation& on_host) { return group().start(on_host); });
}

void StagedCommunicator::do_run(const Operation& operation) {
  const int64_t bytes = bytes_to_stage(operation);
  if (bytes == 0) return group().run(operation);
  const auto run = [&](const Operation& on_host) {
    group().run(on_host);
    return Work();
  };
  stage(operation, bytes, run).wait();
}

}  // namespace copus
