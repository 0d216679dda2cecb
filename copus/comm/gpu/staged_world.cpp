// Makes a world whose device memory travels through pinned host memory. When an operation starts, the host waits until
// the device has reached that point, and copies the operation's input to the host. The operation itself then runs on
// this host memory in the underlying group, with that group's order of sums, queue of operations and deadlines. The
// wait for the operation copies its result to the device; work that is put on the stream later runs after that copy.
//
// Because the host waits, a device may run out of this rank's work. This world is therefore meant for ranks that share
// a device, which meanwhile computes for another rank.
#include <algorithm>
#include <bit>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "copus/base/numbers/philox.h"
#include "copus/comm/gpu/device_world.h"
#include "copus/comm/gpu/pinned_pool.h"

namespace copus {

namespace {

// What the staged groups use.
struct Staging {
  explicit Staging(std::shared_ptr<DeviceRuntime> its_runtime) : runtime(std::move(its_runtime)), pinned(*runtime) {}
  const std::shared_ptr<DeviceRuntime> runtime;
  PinnedPool pinned;
};

// A range of device memory, and the pinned memory to which it is copied.
struct Stretch {
  void* device;
  std::byte* pinned;
  int64_t bytes;
};

// An operation rewritten to work in pinned memory.
struct StagedOperation {
  Operation on_host;
  std::vector<Stretch> down, up;  // copies before (down) and after (up) the operation
};

// An operation that the group runs in a pinned buffer. It lasts until its result is being copied to the device.
class StagedWork final : public Work::State {
 public:
  StagedWork(Staging& staging, PinnedPool::Buffer buffer, std::vector<Stretch> up)
      : staging_(staging), buffer_(std::move(buffer)), up_(std::move(up)), stream_(staging.runtime->current_stream()) {}

  void set_on_host(Work on_host) { on_host_ = std::move(on_host); }

  void wait() override {
    if (is_settled_) return;
    on_host_.wait();
    for (const Stretch& stretch : up_) {
      staging_.runtime->copy(stretch.device, stretch.pinned, stretch.bytes, stream_);
    }
    if (!up_.empty()) up_there_ = staging_.runtime->record(stream_);
    staging_.pinned.give_back(std::move(buffer_), up_there_);
    is_settled_ = true;
  }

  bool done() override {
    if (!is_settled_) {
      if (!on_host_.done()) return false;
      try {
        wait();
      } catch (...) {
        return true;  // with an error, which wait() rethrows
      }
    }
    return !up_there_ || up_there_->done();
  }

  bool is_settled() const { return is_settled_; }

 private:
  Staging& staging_;
  PinnedPool::Buffer buffer_;
  const std::vector<Stretch> up_;
  const DeviceRuntime::Stream stream_;
  Work on_host_;
  bool is_settled_ = false;
  std::shared_ptr<const DeviceRuntime::Event> up_there_;
};

class StagedCommunicator final : public WrappedCommunicator {
 public:
  StagedCommunicator(Communicator& group, Staging& staging) : WrappedCommunicator(group), staging_(staging) {}

 private:
  Work do_start(const Operation& operation) override {
    if (operation.kind == OperationKind::receive) return run_in_wait(operation);
    const int64_t bytes = bytes_to_stage(operation);
    if (bytes == 0) return group().start(operation);
    return stage(operation, bytes, [&](const Operation& on_host) { return group().start(on_host); });
  }

  // Operations on host memory stay on the caller's thread.
  void do_run(const Operation& operation) override {
    const int64_t bytes = bytes_to_stage(operation);
    if (bytes == 0) return group().run(operation);
    const auto run = [&](const Operation& on_host) {
      group().run(on_host);
      return Work();
    };
    stage(operation, bytes, run).wait();
  }

  bool is_on_device(const void* data, int64_t bytes) const {
    return bytes > 0 && staging_.runtime->is_device_memory(data);
  }

  // The bytes of pinned memory that an operation needs; 0 if it is entirely in host memory.
  int64_t bytes_to_stage(const Operation& operation) const {
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

  StagedOperation in_pinned_memory(const Operation& operation, std::byte* pinned) const {
    StagedOperation staged{operation, {}, {}};
    if (operation.kind == OperationKind::exchange) {
      const auto place = [&](std::vector<Message>& messages, std::vector<Stretch>& stretches) {
        for (Message& message : messages) {
          if (!is_on_device(message.data, message.bytes)) continue;
          stretches.push_back({message.data, pinned, message.bytes});
          message.data = std::exchange(pinned, pinned + message.bytes);
        }
      };
      place(staged.on_host.outgoing, staged.down);
      place(staged.on_host.incoming, staged.up);
      return staged;
    }
    const VectorPart input = operation.input_of(rank()), output = operation.output_of(rank());
    staged.on_host.input = pinned + input.offset;
    staged.on_host.output = pinned + output.offset;
    // const_cast is safe: the copy down to the host only reads device memory.
    if (input.bytes > 0) staged.down = {{const_cast<void*>(operation.input), pinned + input.offset, input.bytes}};
    if (output.bytes > 0) staged.up = {{operation.output, pinned + output.offset, output.bytes}};
    return staged;
  }

  Work stage(const Operation& operation, int64_t bytes, const std::function<Work(const Operation& on_host)>& start) {
    std::erase_if(under_way_, [](const std::shared_ptr<StagedWork>& work) { return work->is_settled(); });
    PinnedPool::Buffer buffer = staging_.pinned.take(bytes);
    StagedOperation staged = in_pinned_memory(operation, buffer.data());
    DeviceRuntime& runtime = *staging_.runtime;
    const DeviceRuntime::Stream stream = runtime.current_stream();
    for (const Stretch& stretch : staged.down) runtime.copy(stretch.pinned, stretch.device, stretch.bytes, stream);
    if (!staged.down.empty()) runtime.synchronize(stream);
    auto work = std::make_shared<StagedWork>(staging_, std::move(buffer), std::move(staged.up));
    under_way_.push_back(work);
    work->set_on_host(start(staged.on_host));
    return Work(std::move(work));
  }

  Staging& staging_;
  // Operations whose buffers the group may still use. They are kept even if their handles are gone.
  std::vector<std::shared_ptr<StagedWork>> under_way_;
};

class StagedWorld final : public WrappedWorld {
 public:
  StagedWorld(std::unique_ptr<World> inner, const std::shared_ptr<Staging>& staging)
      : WrappedWorld(std::move(inner), staging), staging_(*staging) {}

  std::string device_connection() const override { return "GPUs through the host, since ranks share them"; }

 private:
  std::unique_ptr<Communicator> make_group(const std::vector<int64_t>& ranks, int64_t /*member*/) override {
    return std::make_unique<StagedCommunicator>(inner().group(ranks), staging_);
  }

  Staging& staging_;
};

}  // namespace

std::unique_ptr<World> stage_through_host(std::unique_ptr<World> world, std::shared_ptr<DeviceRuntime> runtime) {
  return std::make_unique<StagedWorld>(std::move(world), std::make_shared<Staging>(std::move(runtime)));
}

DevicePlaces find_device_places(World& world, const DeviceRuntime& runtime) {
  const std::string device = runtime.identity();
  const std::string machine = device.substr(0, device.rfind(' '));
  const int64_t mine[] = {std::bit_cast<int64_t>(stream_key(0, device)),
                          std::bit_cast<int64_t>(stream_key(0, machine))};
  std::vector<int64_t> all(2 * world.size());
  world.everyone().all_gather(mine, all.data(), std::vector<int64_t>(world.size(), 2), DataType::int64);
  DevicePlaces places{};
  std::map<int64_t, int64_t> rank_on;  // by device
  std::set<int64_t> machines;
  for (int64_t rank = 0; rank < world.size(); ++rank) {
    const auto [other, is_first] = rank_on.emplace(all[2 * rank], rank);
    if (!is_first && !places.sharing) places.sharing = {other->second, rank};
    machines.insert(all[2 * rank + 1]);
  }
  places.machines = std::ssize(machines);
  return places;
}

}  // namespace copus
