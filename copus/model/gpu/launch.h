// Launches a kernel. The tests' emulator launches kernels in its own way.
#pragma once

#if defined(__CUDACC__) || defined(__HIPCC__)

#include <cstdint>

#include "copus/base/error.h"

namespace copus::gpu {

// A grid of blocks x blocks_y blocks; blocks_y is at most 65535.
struct Grid {
  int64_t blocks;
  int64_t blocks_y = 1;
};

template <class Arguments>
void launch(void (*kernel)(Arguments), Grid grid, int threads, void* stream, const Arguments& arguments) {
  if (grid.blocks == 0) return;
  const dim3 blocks(static_cast<unsigned>(grid.blocks), static_cast<unsigned>(grid.blocks_y));
#if defined(__HIPCC__)
  kernel<<<blocks, static_cast<unsigned>(threads), 0, static_cast<hipStream_t>(stream)>>>(arguments);
  const hipError_t error = hipGetLastError();
  COPUS_CHECK(error == hipSuccess, "a kernel could not be started: ", hipGetErrorString(error));
#else
  kernel<<<blocks, static_cast<unsigned>(threads), 0, static_cast<cudaStream_t>(stream)>>>(arguments);
  const cudaError_t error = cudaGetLastError();
  COPUS_CHECK(error == cudaSuccess, "a kernel could not be started: ", cudaGetErrorString(error));
#endif
}

}  // namespace copus::gpu

#endif
