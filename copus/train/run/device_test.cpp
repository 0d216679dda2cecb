#include "copus/train/run/device.h"

#include <ATen/Context.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>

#include "copus/base/error.h"

namespace copus {
namespace {

using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

TEST(FindDevice, KnowsTheProcessor) { EXPECT_EQ(find_device("cpu"), at::Device(at::kCPU)); }

TEST(FindDevice, RefusesOtherNames) {
  for (const std::string name : {"tpu", "cuda:", "cuda:x", "cuda:-1", "cuda:1x", "cudax", ""}) {
    EXPECT_THAT([&] { find_device(name); },
                ThrowsMessage<UserError>(AllOf(HasSubstr("\"" + name + "\""), HasSubstr("cuda:N"))))
        << name;
  }
}

// The message says whether libtorch has CUDA, and what to set.
TEST(FindDevice, RefusesADeviceThatIsNotThere) {
  EXPECT_THAT([] { find_device("cuda:99"); },
              ThrowsMessage<UserError>(AllOf(HasSubstr("cuda:99"), HasSubstr("train.device"),
                                             AnyOf(HasSubstr("CUDA"), HasSubstr("computes on CPUs alone")))));
}

TEST(ConnectDevices, OfSeveralMachinesRefusesRanksThatShareAGpu) {
  EXPECT_THAT([] { check_may_stage({.machines = 2, .sharing = {{8, 12}}}); },
              ThrowsMessage<UserError>(AllOf(HasSubstr("ranks 8 and 12 share a GPU, in a job of 2 machines"),
                                             HasSubstr("CUDA_VISIBLE_DEVICES"))));
  EXPECT_NO_THROW(check_may_stage({.machines = 1, .sharing = {{0, 1}}}));
}

// With warnings only, the gradients of CUDA's flash attention would not repeat.
TEST(ConfigureAten, InsistsOnDeterministicAlgorithms) {
  configure_aten(1);
  EXPECT_TRUE(at::globalContext().deterministicAlgorithms());
  EXPECT_FALSE(at::globalContext().deterministicAlgorithmsWarnOnly());
  EXPECT_NE(std::getenv("CUBLAS_WORKSPACE_CONFIG"), nullptr);
}

}  // namespace
}  // namespace copus
