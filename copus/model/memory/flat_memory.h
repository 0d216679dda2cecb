// Flat tensors whose memory is allocated and freed while views of them exist. With ZeRO-2 and 3 a rank keeps only its
// shard of a bucket; its tensor for the unsharded bucket has memory only while the bucket is in use.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace copus {

// Returns a flat tensor of `count` elements without memory, of which views can be made. Its elements may be accessed
// only between give_memory and take_memory.
at::Tensor flat_without_memory(int64_t count, at::ScalarType dtype, at::Device device);

// Allocates memory from the device's allocator. Elements are undefined.
void give_memory(const at::Tensor& flat);

// Frees the memory, if any. On a GPU, work that is enqueued later on the current stream may reuse it.
void take_memory(const at::Tensor& flat);

bool has_memory(const at::Tensor& flat);

}  // namespace copus
