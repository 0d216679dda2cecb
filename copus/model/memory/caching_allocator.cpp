#include "copus/model/memory/caching_allocator.h"

#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>
#include <sys/mman.h>

#include <algorithm>
#include <bit>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <new>
#include <unordered_map>
#include <vector>

#include "copus/base/numbers/round_up.h"

namespace copus {
namespace {

constexpr size_t huge_page = size_t{2} << 20;
constexpr size_t smallest_cached = size_t{64} << 10;  // malloc caches smaller blocks itself
constexpr size_t cache_line = 64;

// Rounds up to one of eight sizes per power of two, so that blocks can be reused, and at most an eighth is wasted.
size_t size_class(size_t bytes) {
  if (bytes < smallest_cached) return round_up(bytes, cache_line);
  const size_t step = std::bit_floor(bytes) / 8;
  return round_up(bytes, step);
}

void* allocate_block(size_t bytes) {
  const size_t alignment = bytes >= huge_page ? huge_page : cache_line;
  void* block = std::aligned_alloc(alignment, round_up(bytes, alignment));
  if (!block) throw std::bad_alloc();
  if (bytes >= huge_page) madvise(block, bytes, MADV_HUGEPAGE);  // a hint, so failure is harmless
  return block;
}

class CachingAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t bytes) override {
    if (bytes == 0) return {nullptr, nullptr, &release, c10::DeviceType::CPU};
    const size_t size = size_class(bytes);
    const std::lock_guard lock(mutex_);
    std::vector<void*>& cached = cached_[size];
    void* block = nullptr;
    if (cached.empty()) {
      make_room(static_cast<int64_t>(size));
      block = allocate_block(size);
      memory_.reserved_bytes += static_cast<int64_t>(size);
    } else {
      block = cached.back();
      cached.pop_back();
    }
    sizes_[block] = size;
    memory_.used_bytes += static_cast<int64_t>(size);
    memory_.peak_used_bytes = std::max(memory_.peak_used_bytes, memory_.used_bytes);
    return {block, block, &release, c10::DeviceType::CPU};
  }

  c10::DeleterFnPtr raw_deleter() const override { return &release; }

  void copy_data(void* to, const void* from, size_t count) const override { std::memcpy(to, from, count); }

  HostMemory memory() {
    const std::lock_guard lock(mutex_);
    return memory_;
  }

  void reset_peak() {
    const std::lock_guard lock(mutex_);
    memory_.peak_used_bytes = memory_.used_bytes;
  }

  void set_limit(int64_t bytes) {
    const std::lock_guard lock(mutex_);
    limit_ = bytes;
    if (limit_ > 0) free_cached();
  }

  // The instance is never destroyed, because tensors in static storage may be destroyed later.
  static CachingAllocator& instance() {
    static CachingAllocator& allocator = *new CachingAllocator;
    return allocator;
  }

 private:
  static void release(void* block) {
    if (block) instance().release_block(block);
  }

  void release_block(void* block) {
    const std::lock_guard lock(mutex_);
    const auto found = sizes_.find(block);
    const size_t size = found->second;
    sizes_.erase(found);
    memory_.used_bytes -= static_cast<int64_t>(size);
    if (size >= smallest_cached) {
      cached_[size].push_back(block);
    } else {
      memory_.reserved_bytes -= static_cast<int64_t>(size);
      std::free(block);
    }
  }

  void free_cached() {
    for (auto& [size, blocks] : cached_) {
      for (void* const block : blocks) std::free(block);
      memory_.reserved_bytes -= static_cast<int64_t>(size * blocks.size());
      blocks.clear();
    }
  }

  void make_room(int64_t bytes) {
    if (limit_ == 0 || memory_.reserved_bytes + bytes <= limit_) return;
    free_cached();
    if (memory_.reserved_bytes + bytes > limit_) throw HostMemoryExceeded();
  }

  std::mutex mutex_;
  int64_t limit_ = 0;  // of reserved bytes; 0: none
  HostMemory memory_{};
  std::unordered_map<void*, size_t> sizes_;
  std::unordered_map<size_t, std::vector<void*>> cached_;
};

}  // namespace

void install_caching_allocator() { c10::SetCPUAllocator(&CachingAllocator::instance(), /*priority=*/255); }

HostMemory host_memory() { return CachingAllocator::instance().memory(); }

void set_host_memory_limit(int64_t bytes) { CachingAllocator::instance().set_limit(bytes); }

void reset_peak_host_memory() { CachingAllocator::instance().reset_peak(); }

}  // namespace copus
