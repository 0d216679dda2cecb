#include "copus/comm/gpu/pinned_pool.h"

#include <exception>
#include <utility>

#include "copus/base/numbers/round_up.h"

namespace copus {

namespace {

// Sizes are rounded up to this unit, so that messages of similar size share buffers.
constexpr int64_t unit = 64 << 10;

}  // namespace

PinnedPool::~PinnedPool() {
  for (const auto& [bytes, buffer] : free_) {
    try {
      if (buffer.in_use_until_) buffer.in_use_until_->synchronize();
    } catch (const std::exception&) {  // NOLINT(bugprone-empty-catch)
      // The device has failed. Threads that waited for its results have received the error.
    }
  }
}

PinnedPool::Buffer PinnedPool::take(int64_t bytes) {
  Buffer buffer;
  if (!free_.empty()) {
    // Takes the smallest free buffer that is large enough. If none is, replaces the largest one by a larger one.
    auto chosen = free_.lower_bound(bytes);
    if (chosen == free_.end()) --chosen;
    buffer = std::move(free_.extract(chosen).mapped());
    if (buffer.in_use_until_) std::exchange(buffer.in_use_until_, nullptr)->synchronize();
  }
  if (buffer.bytes_ < bytes) {
    buffer.memory_.reset();
    buffer.bytes_ = round_up(bytes, unit);
    buffer.memory_ = runtime_.allocate_pinned(buffer.bytes_);
  }
  return buffer;
}

void PinnedPool::give_back(Buffer buffer, std::shared_ptr<const DeviceRuntime::Event> in_use_until) {
  buffer.in_use_until_ = std::move(in_use_until);
  free_.emplace(buffer.bytes_, std::move(buffer));
}

}  // namespace copus
