// The stream on which a thread's kernels run, in the platform's own type.
#pragma once

#include <c10/core/Device.h>

namespace copus {

// Returns the cudaStream_t or hipStream_t of the calling thread's current stream on `device`. The result is null for
// the platform's default stream, and for a CPU, where kernels run synchronously.
void* current_stream_handle(at::Device device);

}  // namespace copus
