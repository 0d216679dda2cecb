// Names for what nvcc, hipcc and the tests' emulator spell differently in device code. Kernels take one struct by
// value. A block has a multiple of 64 threads, so that warps are whole on every device. All threads of a block take
// part in every synchronisation and shuffle.
#pragma once

#include <cstddef>
#include <cstdint>

#if defined(__HIPCC__)
#include <hip/hip_runtime.h>
#elif !defined(__CUDACC__)
#include "copus/model/gpu/emulated_device.h"
#endif

namespace copus::gpu {

#if defined(__CUDACC__) || defined(__HIPCC__)

#define COPUS_DEVICE __device__ __forceinline__
// Declares a kernel that is launched with at most this many threads a block.
#define COPUS_KERNEL(threads) __global__ void __launch_bounds__(threads)
// Declares an array that the threads of a block share.
#define COPUS_SHARED(type, name, count) __shared__ type name[count]
#define COPUS_UNROLL _Pragma("unroll")

COPUS_DEVICE int thread_index() { return static_cast<int>(threadIdx.x); }
COPUS_DEVICE int block_threads() { return static_cast<int>(blockDim.x); }
COPUS_DEVICE int64_t block_index() { return blockIdx.x; }
COPUS_DEVICE int64_t grid_blocks() { return gridDim.x; }
COPUS_DEVICE int64_t block_index_y() { return blockIdx.y; }
COPUS_DEVICE int warp_size() { return warpSize; }
COPUS_DEVICE void synchronize_block() { __syncthreads(); }

COPUS_DEVICE void atomic_add(int64_t* to, int64_t value) {
  atomicAdd(reinterpret_cast<unsigned long long*>(to), static_cast<unsigned long long>(value));
}

// Returns the value of the thread in the warp whose index differs from this thread's in these bits.
template <class T>
COPUS_DEVICE T shuffle_xor(T value, int bits) {
#if defined(__HIPCC__)
  return __shfl_xor(value, bits);
#else
  return __shfl_xor_sync(0xffffffffU, value, bits);
#endif
}

COPUS_DEVICE float bits_to_float(uint32_t bits) { return __uint_as_float(bits); }
COPUS_DEVICE uint32_t float_to_bits(float value) { return __float_as_uint(value); }
COPUS_DEVICE uint64_t double_to_bits(double value) { return static_cast<uint64_t>(__double_as_longlong(value)); }
// Does nothing here: the device itself stops at a misaligned access.
COPUS_DEVICE void check_alignment(const void* /*to*/, size_t /*bytes*/) {}

#endif

struct BFloat16 {
  uint16_t bits;
};

COPUS_DEVICE float widen(float value) { return value; }
COPUS_DEVICE float widen(BFloat16 value) { return bits_to_float(static_cast<uint32_t>(value.bits) << 16); }

// Rounds to nearest, ties to even; a NaN remains NaN.
template <class S>
COPUS_DEVICE S round_to(float value) {
  if constexpr (sizeof(S) == sizeof(float)) {
    return value;
  } else {
#if defined(__CUDA_ARCH__)
    BFloat16 rounded;
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(rounded.bits) : "f"(value));
    return rounded;
#else
    const uint32_t bits = float_to_bits(value);
    const uint32_t rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
    return BFloat16{static_cast<uint16_t>(value == value ? rounded : 0x7fc0)};
#endif
  }
}

// V elements, read or written in one access: 16 bytes, or one element if memory is not aligned to 16 bytes.
template <class S, int V>
struct alignas(sizeof(S) * V) Pack {
  S values[V];
};
template <class S>
inline constexpr int vector_width = 16 / static_cast<int>(sizeof(S));

template <int V, class S>
COPUS_DEVICE Pack<S, V> load(const S* from) {
  check_alignment(from, sizeof(Pack<S, V>));
  return *reinterpret_cast<const Pack<S, V>*>(from);
}
template <class S, int V>
COPUS_DEVICE void store(S* to, const Pack<S, V>& pack) {
  check_alignment(to, sizeof(Pack<S, V>));
  *reinterpret_cast<Pack<S, V>*>(to) = pack;
}

inline constexpr int smallest_warp = 32, largest_block = 1024;

// Combines the values of the block's threads in a fixed order, and gives every thread the result.
template <class T, class Combine>
COPUS_DEVICE T reduce_block(T value, Combine combine) {
  COPUS_SHARED(T, of_warp, largest_block / smallest_warp);
  const int warps = block_threads() / warp_size();
  for (int bits = warp_size() / 2; bits > 0; bits /= 2) value = combine(value, shuffle_xor(value, bits));
  synchronize_block();  // other threads may still read `of_warp` from an earlier reduction
  if (thread_index() % warp_size() == 0) of_warp[thread_index() / warp_size()] = value;
  synchronize_block();
  T all = of_warp[0];
  for (int warp = 1; warp < warps; ++warp) all = combine(all, of_warp[warp]);
  return all;
}

template <class T>
COPUS_DEVICE T sum_over_block(T value) {
  return reduce_block(value, [](T a, T b) { return a + b; });
}

}  // namespace copus::gpu
