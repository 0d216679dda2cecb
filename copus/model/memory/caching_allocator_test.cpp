#include "copus/model/memory/caching_allocator.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <gtest/gtest.h>

namespace copus {
namespace {

TEST(CachingAllocator, ReusesFreedBlocksAndCountsLiveOnes) {
  install_caching_allocator();
  const int64_t before = host_memory().used_bytes;
  void* first = nullptr;
  {
    const at::Tensor tensor = at::empty({1000, 1000}, at::kFloat);
    first = tensor.data_ptr();
    EXPECT_GE(host_memory().used_bytes - before, 4'000'000);
    EXPECT_LE(host_memory().used_bytes - before, 4'500'000);
  }
  EXPECT_EQ(host_memory().used_bytes, before);
  const at::Tensor again = at::empty({999, 1000}, at::kFloat);
  EXPECT_EQ(again.data_ptr(), first);
  EXPECT_GE(host_memory().peak_used_bytes - before, 4'000'000);
  const at::Tensor other = at::empty({1000, 1000}, at::kFloat);
  EXPECT_NE(other.data_ptr(), first);
}

TEST(CachingAllocator, RefusesTensorsBeyondItsLimitAndGivesBackItsCacheFirst) {
  install_caching_allocator();
  constexpr int64_t megabyte = 1 << 20;
  {
    const at::Tensor cached = at::empty({48 * megabyte}, at::kByte);
  }
  const int64_t used = host_memory().used_bytes;
  EXPECT_GE(host_memory().reserved_bytes, used + 48 * megabyte);
  set_host_memory_limit(used + 64 * megabyte);
  {
    const at::Tensor most = at::empty({56 * megabyte}, at::kByte);
    EXPECT_LE(host_memory().reserved_bytes, used + 64 * megabyte);
    EXPECT_THROW(at::empty({16 * megabyte}, at::kByte), HostMemoryExceeded);
    EXPECT_EQ(host_memory().used_bytes, used + 56 * megabyte) << "what is refused is not counted";
    const at::Tensor little = at::empty({4 * megabyte}, at::kByte);
  }
  set_host_memory_limit(0);
  const at::Tensor more = at::empty({128 * megabyte}, at::kByte);
  EXPECT_GE(host_memory().used_bytes, used + 128 * megabyte);
}

}  // namespace
}  // namespace copus
