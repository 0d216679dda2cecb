#include "copus/model/caching_allocator.h"

#include <ATen/ATen.h>
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

}  // namespace
}  // namespace copus
