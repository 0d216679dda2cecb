// For tests over NCCL: ranks as threads, each with a fake device, over a mock library. If the environment sets
// COPUS_TEST_NCCL_GPUS, the number of GPUs, ranks use these GPUs in turn and the real library instead, and tests that
// inspect the mock are skipped.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "copus/comm/gpu/nccl_world.h"
#include "copus/comm/testing/borrowed_world.h"
#include "copus/comm/testing/mock_nccl.h"
#include "copus/comm/testing/rank_threads.h"
#include "copus/comm/testing/test_data.h"

namespace copus {

inline int64_t test_gpus() {
  const char* const count = std::getenv("COPUS_TEST_NCCL_GPUS");
  return count == nullptr ? 0 : std::stol(count);
}
inline bool uses_real_nccl() { return test_gpus() > 0; }
inline constexpr const char* needs_the_mock = "looks into the mock";

// One rank as a test sees it.
struct NcclRank {
  World& world;
  DeviceRuntime& device;
  MockNccl& nccl;  // unused with the real library

  int64_t rank() const { return world.rank(); }
  // Only with the mock.
  FakeDeviceRuntime& fake() const { return dynamic_cast<FakeDeviceRuntime&>(device); }
  void launch(std::function<void()> kernel) { fake().launch(std::move(kernel), device.current_stream()); }
};

// Device memory that kernels of the current stream write and read.
class DeviceBytes {
 public:
  DeviceBytes(NcclRank& rank, const Bytes& bytes)
      : rank_(rank), size_(bytes.size()), memory_(rank.device.allocate(static_cast<int64_t>(bytes.size()))) {
    write(bytes);
  }

  std::byte* data() const { return static_cast<std::byte*>(memory_.get()); }

  void write(const Bytes& bytes) {
    if (uses_real_nccl()) {
      rank_.device.copy(data(), bytes.data(), static_cast<int64_t>(bytes.size()), rank_.device.current_stream());
      return;
    }
    rank_.launch([bytes, to = host()] { std::copy(bytes.begin(), bytes.end(), to); });
  }
  Bytes read() const {
    Bytes bytes(size_);
    if (uses_real_nccl()) {
      rank_.device.copy(bytes.data(), data(), static_cast<int64_t>(size_), rank_.device.current_stream());
    } else {
      rank_.launch([&bytes, from = host()] { std::copy_n(from, bytes.size(), bytes.begin()); });
    }
    rank_.device.synchronize(rank_.device.current_stream());
    return bytes;
  }

 private:
  std::byte* host() const { return rank_.fake().on_host<std::byte>(memory_.get()); }

  NcclRank& rank_;
  size_t size_;
  std::shared_ptr<void> memory_;
};

inline constexpr double patient_seconds = 60;

// The default stream of each thread (cudaStreamPerThread, hipStreamPerThread), so that ranks as threads do not share
// one.
inline void* stream_of_thread() {
  void* stream = nullptr;
  const uintptr_t handle = 2;
  static_assert(sizeof stream == sizeof handle);
  std::memcpy(&stream, &handle, sizeof stream);
  return stream;
}

inline void run_over_nccl(int64_t size, MockNccl& nccl, const std::function<void(NcclRank&)>& body,
                          double wait_seconds = patient_seconds, int64_t kept_bytes = kept_nccl_bytes,
                          FakeDeviceRuntime::Options options = {}) {
  options.runs_by_itself = true;
  run_ranks_as_threads(
      size,
      [&](World& host) {
        FakeDeviceRuntime::Options own = options;
        own.seed = static_cast<uint64_t>(host.rank());
        std::shared_ptr<DeviceRuntime> device;
        NcclInterface library;
        if (uses_real_nccl()) {
          device = make_gpu_runtime(host.rank() % test_gpus(), stream_of_thread);
          library = load_nccl();
        } else {
          auto fake = std::make_shared<FakeDeviceRuntime>(std::move(own));
          library = nccl.interface_of(host.rank(), *fake);
          device = std::move(fake);
        }
        const auto world = over_nccl(std::make_unique<BorrowedWorld>(host), device, wait_seconds, library, kept_bytes);
        NcclRank rank{*world, *device, nccl};
        body(rank);
      },
      patient_seconds);
}

// The same with a library whose rules must not be violated.
inline void run_over_nccl(int64_t size, const std::function<void(NcclRank&)>& body,
                          const FakeDeviceRuntime::Options& options = {}) {
  MockNccl nccl;
  run_over_nccl(size, nccl, body, patient_seconds, kept_nccl_bytes, options);
  EXPECT_EQ(nccl.mistakes(), std::vector<std::string>{});
  for (int64_t rank = 0; rank < size; ++rank) EXPECT_EQ(nccl.communicators(rank), 0) << "rank " << rank;
}

}  // namespace copus
