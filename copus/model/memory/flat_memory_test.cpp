#include "copus/model/memory/flat_memory.h"

#include <ATen/ops/arange.h>
#include <gtest/gtest.h>

#include "copus/base/error.h"
#include "copus/model/testing/test_device.h"

namespace copus {
namespace {

TEST(FlatMemory, ViewsMadeWithoutMemorySeeTheOneThatIsGiven) {
  const at::Tensor flat = flat_without_memory(12, at::kFloat, test_device());
  const at::Tensor rows = flat.narrow(0, 4, 6).view({2, 3});
  EXPECT_EQ(flat.numel(), 12);
  EXPECT_FALSE(has_memory(flat));
  for (int round = 0; round < 3; ++round) {
    give_memory(flat);
    EXPECT_TRUE(has_memory(flat));
    flat.copy_(at::arange(12, flat.options()) + round);
    EXPECT_EQ(rows[1][2].item<float>(), static_cast<float>(9 + round));
    take_memory(flat);
    EXPECT_FALSE(has_memory(flat));
  }
  take_memory(flat);
}

TEST(FlatMemory, MemoryIsGivenOnce) {
  const at::Tensor flat = flat_without_memory(3, at::kBFloat16, test_device());
  give_memory(flat);
  EXPECT_THROW(give_memory(flat), InternalError);
}

}  // namespace
}  // namespace copus
