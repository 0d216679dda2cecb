// The stream that a thread's kernels go to, as the platform knows it.
#pragma once

#include <c10/core/Device.h>

namespace copus {

// cudaStream_t or hipStream_t of the calling thread's current stream on `device`, null standing for the platform's
// default one; null for a CPU, where kernels run at once.
void* current_stream_handle(at::Device device);

}  // namespace copus
