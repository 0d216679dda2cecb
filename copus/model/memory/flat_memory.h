// Flat tensors whose memory is allocated and freed while views of them stay. A rank that keeps only its shard of a
// bucket (ZeRO-2 and 3) uses them for the whole bucket, which has memory only while it is in use.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace copus {

// Returns a flat tensor of `count` elements without memory. It may be divided into views. Read and write the elements
// only between give_memory and take_memory.
at::Tensor flat_without_memory(int64_t count, at::ScalarType dtype, at::Device device);

// Allocates memory from the device's allocator, with arbitrary elements.
void give_memory(const at::Tensor& flat);

// Frees the memory, if there is any. On a GPU, work enqueued on the current stream from now on may reuse it.
void take_memory(const at::Tensor& flat);

bool has_memory(const at::Tensor& flat);

}  // namespace copus
