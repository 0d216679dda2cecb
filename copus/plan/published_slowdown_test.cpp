#include "copus/plan/published_slowdown.h"

#include <gtest/gtest.h>

namespace copus {
namespace {

TEST(PublishedSlowdown, NamesTheGenerationAsAWholeWord) {
  const auto is_known = [](PlannedSystem system, const char* device) {
    return published_slowdown(system, device).has_value();
  };
  for (const char* device : {"A100 SXM 80GB", "NVIDIA A100-SXM4-40GB", "A100"}) {
    EXPECT_TRUE(is_known(PlannedSystem::megatron, device)) << device;
  }
  for (const char* device : {"NVIDIA RTX A1000", "DGXA100", "A800 SXM 80GB", ""}) {
    EXPECT_FALSE(is_known(PlannedSystem::megatron, device)) << device;
  }
  EXPECT_TRUE(is_known(PlannedSystem::megatron, "RTX A1000, not A100")) << "a later word";
  EXPECT_TRUE(is_known(PlannedSystem::copus, "H200 SXM 141GB, one, measured"));
  EXPECT_FALSE(is_known(PlannedSystem::copus, "NVIDIA GH200 480GB"));
}

}  // namespace
}  // namespace copus
