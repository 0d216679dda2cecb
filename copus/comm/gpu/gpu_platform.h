// Selects the runtime interface of this build's platform. CUDA and HIP differ in the prefixes of names, and in the few
// things listed here.
#pragma once

#if defined(COPUS_GPU_HIP)

#include <hip/hip_runtime_api.h>
#define COPUS_GPU(name) hip##name

namespace copus::gpu {

inline hipError_t allocate_pinned(void** address, size_t bytes) { return hipHostMalloc(address, bytes, 0); }
inline hipError_t free_pinned(void* address) { return hipHostFree(address); }
inline hipMemoryType memory_type(const hipPointerAttribute_t& attributes) {
#if HIP_VERSION_MAJOR >= 6
  return attributes.type;
#else
  return attributes.memoryType;
#endif
}
using PointerAttributes = hipPointerAttribute_t;
using DeviceProperties = hipDeviceProp_t;

}  // namespace copus::gpu

#else

#include <cuda_runtime_api.h>
#define COPUS_GPU(name) cuda##name

namespace copus::gpu {

inline cudaError_t allocate_pinned(void** address, size_t bytes) {
  return cudaHostAlloc(address, bytes, cudaHostAllocDefault);
}
inline cudaError_t free_pinned(void* address) { return cudaFreeHost(address); }
inline cudaMemoryType memory_type(const cudaPointerAttributes& attributes) { return attributes.type; }
using PointerAttributes = cudaPointerAttributes;
using DeviceProperties = cudaDeviceProp;

}  // namespace copus::gpu

#endif
