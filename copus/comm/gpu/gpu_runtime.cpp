// Implements DeviceRuntime with the runtime of CUDA or HIP.
#include <unistd.h>

#include <array>
#include <fstream>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "copus/base/error.h"
#include "copus/comm/gpu/device_runtime.h"
#include "copus/comm/gpu/gpu_platform.h"

namespace copus {

namespace {

using Error = COPUS_GPU(Error_t);
using PlatformStream = COPUS_GPU(Stream_t);
using PlatformEvent = COPUS_GPU(Event_t);

// Throws on an error. The platform reports some errors again in a later call, so the stored error is cleared too.
void check(Error error, const char* call) {
  if (error == COPUS_GPU(Success)) return;
  static_cast<void>(COPUS_GPU(GetLastError)());
  throw InternalError(concat(gpu_platform(), ": ", call, " failed: ", COPUS_GPU(GetErrorName)(error), " (",
                             COPUS_GPU(GetErrorString)(error), ")"));
}

PlatformStream platform_stream(DeviceRuntime::Stream stream) { return static_cast<PlatformStream>(stream); }

// Every call chooses the device first, because each new thread starts with device 0.
void use_device(int device) { check(COPUS_GPU(SetDevice)(device), "choosing a device"); }

// A pool of reusable events without timing. It lives on after the runtime while any of its events is in use.
class EventPool {
 public:
  explicit EventPool(int device) : device_(device) {}
  EventPool(const EventPool&) = delete;
  EventPool& operator=(const EventPool&) = delete;
  // Errors are ignored, because at the end of a process the platform may already have shut down.
  ~EventPool() {
    for (const PlatformEvent event : free_) static_cast<void>(COPUS_GPU(EventDestroy)(event));
  }

  int device() const { return device_; }

  PlatformEvent take() {
    {
      const std::scoped_lock lock(mutex_);
      if (!free_.empty()) {
        const PlatformEvent event = free_.back();
        free_.pop_back();
        return event;
      }
    }
    PlatformEvent event = nullptr;
    check(COPUS_GPU(EventCreateWithFlags)(&event, COPUS_GPU(EventDisableTiming)), "making an event");
    return event;
  }

  void give_back(PlatformEvent event) {
    const std::scoped_lock lock(mutex_);
    free_.push_back(event);
  }

 private:
  const int device_;
  std::mutex mutex_;
  std::vector<PlatformEvent> free_;
};

class GpuEvent final : public DeviceRuntime::Event {
 public:
  explicit GpuEvent(std::shared_ptr<EventPool> pool) : pool_(std::move(pool)), event_(pool_->take()) {}
  GpuEvent(const GpuEvent&) = delete;
  GpuEvent& operator=(const GpuEvent&) = delete;
  ~GpuEvent() override { pool_->give_back(event_); }

  bool done() const override {
    use_device(pool_->device());
    const Error error = COPUS_GPU(EventQuery)(event_);
    if (error != COPUS_GPU(ErrorNotReady)) {
      check(error, "asking for an event");
      return true;
    }
    static_cast<void>(COPUS_GPU(GetLastError)());  // HIP stores "not ready" like an error
    return false;
  }

  void synchronize() const override {
    use_device(pool_->device());
    check(COPUS_GPU(EventSynchronize)(event_), "waiting for an event");
  }

  PlatformEvent get() const { return event_; }

 private:
  const std::shared_ptr<EventPool> pool_;
  const PlatformEvent event_;
};

// Includes the boot ID, because in some clusters several machines have the same name.
std::string machine() {
  std::array<char, 256> name{};
  ::gethostname(name.data(), name.size() - 1);
  std::string boot;
  std::getline(std::ifstream("/proc/sys/kernel/random/boot_id"), boot);
  return concat(name.data(), " ", boot);
}

class GpuRuntime final : public DeviceRuntime {
 public:
  GpuRuntime(int64_t index, std::function<void*()> current_stream)
      : device_(static_cast<int>(index)),
        current_stream_(std::move(current_stream)),
        events_(std::make_shared<EventPool>(device_)) {
    use_device(device_);
  }
  ~GpuRuntime() override {
    for (const PlatformStream stream : streams_) static_cast<void>(COPUS_GPU(StreamDestroy)(stream));
  }

  std::string identity() const override {
    std::array<char, 64> address{};
    check(COPUS_GPU(DeviceGetPCIBusId)(address.data(), static_cast<int>(address.size()), device_),
          "asking for a device's PCI address");
    return concat(machine(), " ", address.data());
  }

  std::string name() const override {
    gpu::DeviceProperties properties{};
    check(COPUS_GPU(GetDeviceProperties)(&properties, device_), "asking for a device's name");
    return properties.name;
  }

  int64_t driver_version() const override {
#if defined(COPUS_GPU_HIP)
    return 0;
#else
    int version = 0;
    check(cudaDriverGetVersion(&version), "asking for the driver's version");
    return version;
#endif
  }

  bool is_device_memory(const void* address) const override {
    use_device(device_);
    gpu::PointerAttributes attributes{};
    // The address may be unknown to the platform: CUDA then reports unregistered memory, HIP an invalid address.
    const Error error = COPUS_GPU(PointerGetAttributes)(&attributes, address);
    if (error == COPUS_GPU(ErrorInvalidValue)) {
      static_cast<void>(COPUS_GPU(GetLastError)());
      return false;
    }
    check(error, "asking where memory lies");
    return gpu::memory_type(attributes) == COPUS_GPU(MemoryTypeDevice);
  }

  Stream current_stream() const override { return current_stream_(); }

  Stream make_stream() override {
    use_device(device_);
    PlatformStream stream = nullptr;
    // The stream gets the highest priority because other ranks wait for its kernels: they should start before
    // computation kernels that wait for a free multiprocessor.
    int lowest = 0, highest = 0;
    check(COPUS_GPU(DeviceGetStreamPriorityRange)(&lowest, &highest), "asking for the priorities of streams");
    check(COPUS_GPU(StreamCreateWithPriority)(&stream, COPUS_GPU(StreamNonBlocking), highest), "making a stream");
    const std::scoped_lock lock(mutex_);
    streams_.push_back(stream);
    return stream;
  }

  std::unique_ptr<Event> record(Stream stream) override {
    use_device(device_);
    auto event = std::make_unique<GpuEvent>(events_);
    check(COPUS_GPU(EventRecord)(event->get(), platform_stream(stream)), "recording an event");
    return event;
  }

  void wait(Stream stream, const Event& event) override {
    use_device(device_);
    check(COPUS_GPU(StreamWaitEvent)(platform_stream(stream), dynamic_cast<const GpuEvent&>(event).get(), 0),
          "making a stream wait");
  }

  void synchronize(Stream stream) override {
    use_device(device_);
    check(COPUS_GPU(StreamSynchronize)(platform_stream(stream)), "waiting for a stream");
  }

  void copy(void* to, const void* from, int64_t bytes, Stream stream) override {
    if (bytes == 0) return;
    use_device(device_);
    check(COPUS_GPU(MemcpyAsync)(to, from, bytes, COPUS_GPU(MemcpyDefault), platform_stream(stream)), "copying");
  }

  std::shared_ptr<void> allocate(int64_t bytes) override {
    use_device(device_);
    void* address = nullptr;
    check(COPUS_GPU(Malloc)(&address, bytes), "allocating memory of the device");
    return {address, [](void* memory) { static_cast<void>(COPUS_GPU(Free)(memory)); }};
  }

  std::shared_ptr<void> allocate_pinned(int64_t bytes) override {
    use_device(device_);
    void* address = nullptr;
    check(gpu::allocate_pinned(&address, bytes), "allocating pinned memory");
    return {address, [](void* memory) { static_cast<void>(gpu::free_pinned(memory)); }};
  }

  Memory memory() const override {
    use_device(device_);
    size_t free = 0, total = 0;
    check(COPUS_GPU(MemGetInfo)(&free, &total), "asking for free memory");
    return {.total_bytes = static_cast<int64_t>(total), .free_bytes = static_cast<int64_t>(free)};
  }

 private:
  const int device_;
  const std::function<void*()> current_stream_;
  const std::shared_ptr<EventPool> events_;
  std::mutex mutex_;
  std::vector<PlatformStream> streams_;
};

}  // namespace

std::shared_ptr<DeviceRuntime> make_gpu_runtime(int64_t index, std::function<void*()> current_stream) {
  return std::make_shared<GpuRuntime>(index, std::move(current_stream));
}

#if defined(COPUS_GPU_HIP)
const char* gpu_platform() { return "hip"; }
#else
const char* gpu_platform() { return "cuda"; }
#endif

}  // namespace copus
