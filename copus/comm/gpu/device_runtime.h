// The interface to the part of a GPU runtime that communication needs: memory, copies, streams and events. Torch-free.
// gpu_runtime.cpp implements it with CUDA or HIP. Tests use host memory that behaves like device memory
// (fake_device_runtime.h).
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

namespace copus {

// Any thread of the rank may use it. A failed call of the platform throws InternalError that names the call.
class DeviceRuntime {
 public:
  // The platform's handle: cudaStream_t, hipStream_t.
  using Stream = void*;

  // A point in a stream.
  class Event {
   public:
    virtual ~Event() = default;
    virtual bool done() const = 0;
    virtual void synchronize() const = 0;  // the host waits
  };

  virtual ~DeviceRuntime() = default;
  DeviceRuntime(const DeviceRuntime&) = delete;
  DeviceRuntime& operator=(const DeviceRuntime&) = delete;

  // Returns a text that identifies the physical device among all machines of a job: the machine's name, a space, and
  // the device's address. Ranks with equal texts share a device.
  virtual std::string identity() const = 0;
  // The model name, as given by its maker.
  virtual std::string name() const = 0;
  // The newest CUDA version that the driver supports: 12030 is 12.3. 0 on other platforms.
  virtual int64_t driver_version() const = 0;

  virtual bool is_device_memory(const void* address) const = 0;

  // The stream for the calling thread's kernels.
  virtual Stream current_stream() const = 0;
  // A stream that does not wait for other streams, has the highest priority, and lives as long as the runtime.
  virtual Stream make_stream() = 0;
  virtual std::unique_ptr<Event> record(Stream stream) = 0;
  // Later work on the stream runs after the event. The event may be destroyed immediately.
  virtual void wait(Stream stream, const Event& event) = 0;
  virtual void synchronize(Stream stream) = 0;

  // Copies between any two addresses, in stream order. If host memory is not pinned, the host waits for the copy.
  virtual void copy(void* to, const void* from, int64_t bytes, Stream stream) = 0;

  // The memory is freed when the last copy of the pointer is destroyed. The caller must keep a copy until all streams
  // have finished using the memory.
  virtual std::shared_ptr<void> allocate(int64_t bytes) = 0;         // of the device
  virtual std::shared_ptr<void> allocate_pinned(int64_t bytes) = 0;  // of the host, for fast copies

  // The device's total memory, and its free memory.
  struct Memory {
    int64_t total_bytes;
    int64_t free_bytes;
  };
  virtual Memory memory() const = 0;

 protected:
  DeviceRuntime() = default;
};

// Returns the runtime of device `index` of this process. `current_stream` returns the stream for the calling thread's
// kernels. Throws InternalError in a build without a GPU platform.
std::shared_ptr<DeviceRuntime> make_gpu_runtime(int64_t index, std::function<void*()> current_stream);

// The platform that this build is for: "cuda", "hip", or "" for none.
const char* gpu_platform();

}  // namespace copus
