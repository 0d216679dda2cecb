// Flat tensors whose memory comes and goes while views of them stay: whole buckets that a rank holds only while it uses
// them, and of which it otherwise keeps its share (ZeRO-2 and 3).
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace copus {

// Returns a flat tensor of `count` elements without memory. It may be cut into views; their elements exist from
// give_memory to take_memory, and are read and written in between alone.
at::Tensor flat_without_memory(int64_t count, at::ScalarType dtype, at::Device device);

// Allocates memory of the device's allocator, with arbitrary elements.
void give_memory(const at::Tensor& flat);

// Frees the memory, or does nothing where there is none. On a GPU the memory may serve what its current stream is given
// from now on.
void take_memory(const at::Tensor& flat);

bool has_memory(const at::Tensor& flat);

}  // namespace copus
