// For tests: a device in host memory with the longest delays that a device may have. Each stream has its own thread. By
// default its operations run only once something waits for them, so code that forgets to wait always reads old content.
// The host cannot touch the device's memory: a program that tries ends with SIGSEGV.
#pragma once

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "copus/base/error.h"
#include "copus/base/numbers/mix_bits.h"
#include "copus/comm/gpu/device_runtime.h"
#include "copus/comm/shared_memory/state_arena.h"

namespace copus {

class FakeDeviceRuntime final : public DeviceRuntime {
 public:
  static constexpr int64_t capacity = int64_t{1} << 30;  // of addresses; only touched memory is allocated

  struct Options {
    // Streams run by themselves: each operation starts after a random number of yields. Needed if streams wait for
    // other ranks. Otherwise streams run only up to the operation that something waits for.
    bool runs_by_itself = false;
    uint64_t seed = 0;
    // Treats all memory that is not pinned as device memory and the host's computations as kernels, and copies
    // immediately. For code that works on host tensors as it would on a device's tensors.
    bool is_the_host = false;
    std::string identity = "a fake device";
    // The number of hardware queues (CUDA_DEVICE_MAX_CONNECTIONS), to which streams are assigned in turn; 0: each
    // stream has its own. An operation begins after all earlier operations in its hardware queue have begun. A wait for
    // an event blocks the queue until the event is done.
    int64_t hardware_queues = 0;
    // Thread blocks that run at the same time. An operation begins when there is room for all of its blocks.
    int64_t thread_blocks = int64_t{1} << 30;
    // Total memory for allocate().
    int64_t memory_bytes = capacity;
  };

  explicit FakeDeviceRuntime(Options options) : device_(std::make_shared<Device>(std::move(options))) {
    current_ = make_stream();
  }
  FakeDeviceRuntime() : FakeDeviceRuntime(Options()) {}
  // Drops operations that have not begun.
  ~FakeDeviceRuntime() override { device_->stop(); }

  std::string identity() const override { return device_->options.identity; }
  std::string name() const override { return "a fake device"; }
  int64_t driver_version() const override { return 12030; }
  bool is_device_memory(const void* address) const override {
    if (device_->options.is_the_host) return !device_->is_pinned(address);
    return device_->holds(address);
  }
  Stream current_stream() const override { return current_; }
  Stream make_stream() override { return device_->make_stream(); }
  std::unique_ptr<Event> record(Stream stream) override { return device_->record(stream); }

  void wait(Stream stream, const Event& event) override {
    const Point point = dynamic_cast<const Late&>(event).point;
    device_->add(stream, {[device = device_.get(), point] { device->wait_for(point); },
                          {},
                          /*thread_blocks=*/0,
                          /*holds_queue=*/true});
  }
  void synchronize(Stream stream) override { device_->wait_for(device_->end_of(stream)); }

  void copy(void* to, const void* from, int64_t bytes, Stream stream) override {
    if (bytes == 0) return;
    const auto run = [target = on_host<void>(to), source = on_host<void>(from), bytes] {
      std::memmove(target, source, bytes);
    };
    device_->add(stream,
                 {run, {{static_cast<const std::byte*>(to), bytes}, {static_cast<const std::byte*>(from), bytes}}});
    const bool late = !device_->options.is_the_host && device_->is_fast(to) && device_->is_fast(from);
    if (!late) synchronize(stream);
  }

  std::shared_ptr<void> allocate(int64_t bytes) override { return Device::allocate(device_, bytes); }
  std::shared_ptr<void> allocate_pinned(int64_t bytes) override { return Device::allocate_pinned(device_, bytes); }
  Memory memory() const override { return device_->memory(); }

  // A kernel. It accesses device memory only through on_host.
  void launch(std::function<void()> kernel, Stream stream, int64_t thread_blocks = 1) {
    device_->add(stream, {std::move(kernel), {}, thread_blocks});
  }

  // The address that kernels use for device memory. For host memory, the same address.
  template <class Value>
  Value* on_host(const void* address) const {
    return static_cast<Value*>(device_->on_host(address));
  }

 private:
  static constexpr int64_t polls_until_done = 3;

  struct Stretch {
    const std::byte* begin;
    int64_t bytes;
  };
  struct Operation {
    std::function<void()> run;
    std::vector<Stretch> uses;
    int64_t thread_blocks = 0;
    bool holds_queue = false;  // counts as begun only when it is done
    int64_t number = 0;        // number among all operations of the device, in the order of issue
    bool begun = false;
  };
  struct Queue {
    int64_t hardware_queue = 0;
    std::deque<Operation> operations;  // the first one is running
    int64_t given = 0, done = 0, demanded = 0;
    std::thread thread;
  };
  // A position in a stream: after this many of its operations.
  struct Point {
    Queue* queue;
    int64_t position;
  };

  struct Device;
  struct Late final : Event {
    Late(std::shared_ptr<Device> its_device, Point its_point) : device(std::move(its_device)), point(its_point) {}
    bool done() const override { return device->is_done(point, ++polls >= polls_until_done); }
    void synchronize() const override { device->wait_for(point); }
    std::shared_ptr<Device> device;
    Point point;
    mutable std::atomic<int64_t> polls = 0;  // by any thread
  };

  struct Device : std::enable_shared_from_this<Device> {
    explicit Device(Options its_options) : options(std::move(its_options)) {
      const int file = ::memfd_create("fake device", MFD_CLOEXEC);
      COPUS_CHECK(file >= 0 && ::ftruncate(file, capacity) == 0);
      hidden = map(file, PROT_READ | PROT_WRITE);
      visible = options.is_the_host ? hidden : map(file, PROT_NONE);
      ::close(file);
    }
    Device(const Device&) = delete;
    Device& operator=(const Device&) = delete;
    ~Device() {
      if (visible != hidden) ::munmap(visible, capacity);
      ::munmap(hidden, capacity);
    }

    static std::byte* map(int file, int protection) {
      void* const address = ::mmap(nullptr, capacity, protection, MAP_SHARED | MAP_NORESERVE, file, 0);
      COPUS_CHECK(address != MAP_FAILED);
      return static_cast<std::byte*>(address);
    }

    bool holds(const void* address) const {
      const auto* const byte = static_cast<const std::byte*>(address);
      return byte >= visible && byte < visible + capacity;
    }
    void* on_host(const void* address) const {
      if (!holds(address)) return const_cast<void*>(address);
      return hidden + (static_cast<const std::byte*>(address) - visible);
    }
    bool is_fast(const void* address) { return holds(address) || is_pinned(address); }
    bool is_pinned(const void* address) {
      const std::scoped_lock lock(mutex);
      auto after = pinned.upper_bound(static_cast<const std::byte*>(address));
      if (after == pinned.begin()) return false;
      const auto [begin, bytes] = *--after;
      return static_cast<const std::byte*>(address) < begin + bytes;
    }

    Stream make_stream() {
      const std::scoped_lock lock(mutex);
      Queue* const queue = queues.emplace_back(std::make_unique<Queue>()).get();
      const auto place = static_cast<int64_t>(queues.size()) - 1;
      queue->hardware_queue = options.hardware_queues > 0 ? place % options.hardware_queues : place;
      queue->thread = std::thread([this, queue, number = queues.size()] { run(*queue, number); });
      return queue;
    }

    void add(Stream stream, Operation operation) {
      Queue& queue = *static_cast<Queue*>(stream);
      const std::scoped_lock lock(mutex);
      operation.number = issued++;
      queue.operations.push_back(std::move(operation));
      ++queue.given;
      changed.notify_all();
    }

    Point end_of(Stream stream) {
      const std::scoped_lock lock(mutex);
      auto* const queue = static_cast<Queue*>(stream);
      return {queue, queue->given};
    }
    std::unique_ptr<Event> record(Stream stream) { return std::make_unique<Late>(shared_from_this(), end_of(stream)); }

    void wait_for(Point point) {
      std::unique_lock lock(mutex);
      demand(point);
      changed.wait(lock, [&] { return stopping || point.queue->done >= point.position; });
    }
    bool is_done(Point point, bool demanded) {
      const std::scoped_lock lock(mutex);
      if (demanded) demand(point);
      return point.queue->done >= point.position;
    }
    void demand(Point point) {
      point.queue->demanded = std::max(point.queue->demanded, point.position);
      changed.notify_all();
    }

    // Whether the next operation of the queue may begin.
    bool has_room(const Queue& queue) const {
      const Operation& next = queue.operations.front();
      if (next.thread_blocks > 0 && running_blocks > 0 && running_blocks + next.thread_blocks > options.thread_blocks) {
        return false;
      }
      return std::none_of(queues.begin(), queues.end(), [&](const std::unique_ptr<Queue>& other) {
        if (other->hardware_queue != queue.hardware_queue) return false;
        return std::any_of(other->operations.begin(), other->operations.end(), [&](const Operation& operation) {
          return operation.number < next.number && !operation.begun;
        });
      });
    }

    void run(Queue& queue, uint64_t number) {
      std::unique_lock lock(mutex);
      while (true) {
        const auto may_run = [&] {
          return queue.done < queue.given && (options.runs_by_itself || queue.done < queue.demanded) && has_room(queue);
        };
        changed.wait(lock, [&] { return stopping || may_run(); });
        if (stopping) return;
        Operation& first = queue.operations.front();
        const std::function<void()> operation = first.run;
        const int64_t blocks = first.thread_blocks;
        running_blocks += blocks;
        first.begun = !first.holds_queue;
        changed.notify_all();
        uint64_t yields = 0;
        if (queue.done >= queue.demanded) {
          yields = mix_bits(options.seed + (number << 32) + static_cast<uint64_t>(queue.done)) % 64;
        }
        lock.unlock();
        while (yields-- > 0) std::this_thread::yield();
        operation();
        lock.lock();
        queue.operations.pop_front();
        running_blocks -= blocks;
        ++queue.done;
        changed.notify_all();
      }
    }

    void stop() {
      {
        const std::scoped_lock lock(mutex);
        stopping = true;
      }
      changed.notify_all();
      for (const std::unique_ptr<Queue>& queue : queues) queue->thread.join();
    }

    // Deleters keep the device alive, so memory may outlive the device's streams.
    static std::shared_ptr<void> allocate(const std::shared_ptr<Device>& device, int64_t bytes) {
      const std::scoped_lock lock(device->mutex);
      const int64_t offset = device->space.allocate(std::max<int64_t>(bytes, 1));
      if (device->space.used_bytes() > device->options.memory_bytes) {
        device->space.release(offset);
        throw InternalError("the fake device is full");
      }
      return {device->visible + offset, [device, offset, bytes](void* address) {
                const std::scoped_lock freeing(device->mutex);
                device->check_unused(address, bytes);
                device->space.release(offset);
              }};
    }
    static std::shared_ptr<void> allocate_pinned(const std::shared_ptr<Device>& device, int64_t bytes) {
      auto* const address = new std::byte[std::max<int64_t>(bytes, 1)];
      const std::scoped_lock lock(device->mutex);
      device->pinned[address] = bytes;
      return {address, [device, bytes](void* memory) {
                const std::scoped_lock freeing(device->mutex);
                device->check_unused(memory, bytes);
                device->pinned.erase(static_cast<const std::byte*>(memory));
                delete[] static_cast<std::byte*>(memory);
              }};
    }
    void check_unused(const void* address, int64_t bytes) const {
      if (stopping) return;
      const auto* const begin = static_cast<const std::byte*>(address);
      for (const std::unique_ptr<Queue>& queue : queues) {
        for (const Operation& operation : queue->operations) {
          for (const Stretch& used : operation.uses) {
            if (used.begin < begin + bytes && begin < used.begin + used.bytes) {
              ADD_FAILURE() << "memory is freed that a stream has yet to copy";
            }
          }
        }
      }
    }

    Memory memory() {
      const std::scoped_lock lock(mutex);
      return {.total_bytes = options.memory_bytes, .free_bytes = options.memory_bytes - space.used_bytes()};
    }

    const Options options;
    std::byte* hidden;   // where kernels and copies work
    std::byte* visible;  // the addresses that the program sees
    std::mutex mutex;
    std::condition_variable changed;
    std::vector<std::unique_ptr<Queue>> queues;
    ArenaSpace space;
    std::map<const std::byte*, int64_t> pinned;
    int64_t issued = 0, running_blocks = 0;
    bool stopping = false;
  };

  std::shared_ptr<Device> device_;
  Stream current_ = nullptr;
};

}  // namespace copus
