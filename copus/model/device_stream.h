// The stream that a thread's kernels go to, in the platform's own type.
#pragma once

#include <c10/core/Device.h>

namespace copus {

// Returns the cudaStream_t or hipStream_t of the calling thread's current stream on `device`, where null stands for the
// platform's default stream; null for a CPU, where kernels run at once.
void* current_stream_handle(at::Device device);

}  // namespace copus
