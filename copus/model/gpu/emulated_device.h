// An emulated GPU in host memory, for tests of device code compiled with g++. The blocks of a launch run one after
// another. Each thread of a block is a fiber, which yields when it waits for the others. The emulator detects faults
// that a GPU would ignore, or that would kill the process: threads that wait for threads that have finished or wait
// elsewhere, and indices beyond shared memory. Unwritten shared memory holds NaNs, which reveal reads of it.
#pragma once

#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>

#include "copus/base/error.h"

namespace copus::gpu {

#define COPUS_DEVICE inline
#define COPUS_KERNEL(threads) void
#define COPUS_SHARED(type, name, count) \
  static const char name##_place = 0;   \
  const ::copus::gpu::emulated::SharedArray<type, (count)> name(&name##_place)
#define COPUS_UNROLL

namespace emulated {

// Settings for tests. COPUS_EMULATED_WARP sets the initial warp size. With warps of 64, the initial order is reversed.
struct Device {
  int warp_size = 32;
  // The order in which ready threads resume. Correct results do not depend on it.
  bool last_thread_first = false;
  int64_t launches = 0;  // launches so far
};
Device& device();

struct Position {
  int thread, threads;
  int64_t block, blocks, block_y;
};
// Returns the position of the running thread.
const Position& position();

void run(int64_t blocks, int64_t blocks_y, int threads, const std::function<void()>& kernel);
void wait_for_block();
// Exchanges 8 bytes with the thread whose position differs in `bits`; returns that thread's bytes.
uint64_t exchange(uint64_t value, int bits);
void* shared_memory(const void* place, size_t bytes);

template <class T, size_t count>
class SharedArray {
 public:
  explicit SharedArray(const void* place) : data_(static_cast<T*>(shared_memory(place, count * sizeof(T)))) {}
  T& operator[](int64_t i) const {
    COPUS_CHECK(i >= 0 && i < static_cast<int64_t>(count), "index ", i, " of ", count, " in shared memory");
    return data_[i];
  }

 private:
  T* data_;
};

}  // namespace emulated

COPUS_DEVICE int thread_index() { return emulated::position().thread; }
COPUS_DEVICE int block_threads() { return emulated::position().threads; }
COPUS_DEVICE int64_t block_index() { return emulated::position().block; }
COPUS_DEVICE int64_t grid_blocks() { return emulated::position().blocks; }
COPUS_DEVICE int64_t block_index_y() { return emulated::position().block_y; }
COPUS_DEVICE int warp_size() { return emulated::device().warp_size; }
COPUS_DEVICE void synchronize_block() { emulated::wait_for_block(); }
COPUS_DEVICE void atomic_add(int64_t* to, int64_t value) { *to += value; }

template <class T>
COPUS_DEVICE T shuffle_xor(T value, int bits) {
  uint64_t word = 0;
  std::memcpy(&word, &value, sizeof(T));
  word = emulated::exchange(word, bits);
  std::memcpy(&value, &word, sizeof(T));
  return value;
}

COPUS_DEVICE float bits_to_float(uint32_t bits) { return std::bit_cast<float>(bits); }
COPUS_DEVICE uint32_t float_to_bits(float value) { return std::bit_cast<uint32_t>(value); }
COPUS_DEVICE uint64_t double_to_bits(double value) { return std::bit_cast<uint64_t>(value); }
COPUS_DEVICE void check_alignment(const void* to, size_t bytes) {
  COPUS_CHECK(reinterpret_cast<uintptr_t>(to) % bytes == 0, bytes, " bytes are not aligned");
}

struct Grid {
  int64_t blocks;
  int64_t blocks_y = 1;
};

template <class Arguments>
void launch(void (*kernel)(Arguments), Grid grid, int threads, void* /*stream*/, const Arguments& arguments) {
  emulated::run(grid.blocks, grid.blocks_y, threads, [&] { kernel(arguments); });
}

}  // namespace copus::gpu
