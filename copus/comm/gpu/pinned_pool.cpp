#include "copus/comm/gpu/pinned_pool.h"

#include <algorithm>
#include <exception>
#include <utility>

namespace copus {

namespace {

// Sizes are rounded up to this, so that messages which differ by little share buffers.
constexpr int64_t unit = 64 << 10;

}  // namespace

PinnedPool::~PinnedPool() {
  for (const Buffer& buffer : free_) {
    try {
      if (buffer.in_use_until_) buffer.in_use_until_->synchronize();
    } catch (const std::exception&) {  // NOLINT(bugprone-empty-catch)
      // The device has failed, and has told whoever waited for its results.
    }
  }
}

PinnedPool::Buffer PinnedPool::take(int64_t bytes) {
  const auto by_size = [](const Buffer& a, const Buffer& b) { return a.bytes_ < b.bytes_; };
  // The smallest buffer that fits is taken. Where none does, the largest is given up for a larger one.
  auto chosen = free_.end();
  for (auto buffer = free_.begin(); buffer != free_.end(); ++buffer) {
    if (buffer->bytes_ >= bytes && (chosen == free_.end() || by_size(*buffer, *chosen))) chosen = buffer;
  }
  if (chosen == free_.end()) chosen = std::max_element(free_.begin(), free_.end(), by_size);
  Buffer buffer;
  if (chosen != free_.end()) {
    buffer = std::move(*chosen);
    free_.erase(chosen);
    if (buffer.in_use_until_) std::exchange(buffer.in_use_until_, nullptr)->synchronize();
  }
  if (buffer.bytes_ < bytes) {
    buffer.memory_.reset();
    buffer.bytes_ = (bytes + unit - 1) / unit * unit;
    buffer.memory_ = runtime_.allocate_pinned(buffer.bytes_);
  }
  return buffer;
}

void PinnedPool::give_back(Buffer buffer, std::shared_ptr<const DeviceRuntime::Event> in_use_until) {
  buffer.in_use_until_ = std::move(in_use_until);
  free_.push_back(std::move(buffer));
}

}  // namespace copus
