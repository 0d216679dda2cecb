#include "copus/model/kernels/device_stream.h"

#include <c10/core/Stream.h>
#include <c10/core/impl/VirtualGuardImpl.h>

namespace copus {

namespace {

// Returns the stream's handle; libtorch renamed the function after 2.11.
template <class Stream>
void* handle_of(const Stream& stream) {
  if constexpr (requires { stream.stream_handle(); }) {
    return stream.stream_handle();
  } else {
    return stream.native_handle();
  }
}

}  // namespace

void* current_stream_handle(at::Device device) {
  if (device.is_cpu()) return nullptr;
  return handle_of(c10::impl::VirtualGuardImpl(device.type()).getStream(device));
}

}  // namespace copus
