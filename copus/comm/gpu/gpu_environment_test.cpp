#include "copus/comm/gpu/gpu_environment.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <map>
#include <optional>
#include <string>

namespace copus {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Optional;

class GpuEnvironment : public testing::Test {
 protected:
  GpuEnvironment() {
    for (const char* const name : {"CUDA_DEVICE_MAX_CONNECTIONS", "NCCL_NVLS_ENABLE", "NCCL_LAUNCH_ORDER_IMPLICIT",
                                   "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"}) {
      before_[name] = value_of(name);
      ::unsetenv(name);
    }
  }
  ~GpuEnvironment() override {
    for (const auto& [name, value] : before_) {
      ::unsetenv(name.c_str());
      if (value) ::setenv(name.c_str(), value->c_str(), 1);
    }
  }

  static std::optional<std::string> value_of(const char* name) {
    const char* const value = std::getenv(name);
    return value == nullptr ? std::nullopt : std::optional<std::string>(value);
  }

 private:
  std::map<std::string, std::optional<std::string>> before_;
};

TEST_F(GpuEnvironment, IsSetWhereTheUserHasLeftItOpen) {
  set_gpu_environment();
  EXPECT_THAT(value_of("CUDA_DEVICE_MAX_CONNECTIONS"), Optional<std::string>("32"));
  EXPECT_THAT(value_of("NCCL_NVLS_ENABLE"), Optional<std::string>("0"));
  EXPECT_THAT(value_of("PYTORCH_CUDA_ALLOC_CONF"), Optional<std::string>("expandable_segments:True"));
}

TEST_F(GpuEnvironment, StaysAsTheUserHasSetIt) {
  ::setenv("CUDA_DEVICE_MAX_CONNECTIONS", "16", 1);
  ::setenv("NCCL_NVLS_ENABLE", "1", 1);
  ::setenv("PYTORCH_ALLOC_CONF", "max_split_size_mb:128", 1);
  ::setenv("NCCL_LAUNCH_ORDER_IMPLICIT", "0", 1);
  set_gpu_environment();
  order_nccl_launches(12030);
  EXPECT_THAT(value_of("CUDA_DEVICE_MAX_CONNECTIONS"), Optional<std::string>("16"));
  EXPECT_THAT(value_of("NCCL_NVLS_ENABLE"), Optional<std::string>("1"));
  EXPECT_EQ(value_of("PYTORCH_CUDA_ALLOC_CONF"), std::nullopt);
  EXPECT_THAT(value_of("NCCL_LAUNCH_ORDER_IMPLICIT"), Optional<std::string>("0"));
}

TEST_F(GpuEnvironment, OrdersLaunchesWhereTheDriverLetsThemOverlap) {
  order_nccl_launches(12020);
  EXPECT_EQ(value_of("NCCL_LAUNCH_ORDER_IMPLICIT"), std::nullopt);
  order_nccl_launches(12030);
  EXPECT_THAT(value_of("NCCL_LAUNCH_ORDER_IMPLICIT"), Optional<std::string>("1"));
}

TEST_F(GpuEnvironment, HasTooFewQueuesWhereItIsSetUpForMegatron) {
  EXPECT_EQ(lack_of_hardware_queues(), std::nullopt);
  for (const char* const enough : {"8", "32"}) {
    ::setenv("CUDA_DEVICE_MAX_CONNECTIONS", enough, 1);
    EXPECT_EQ(lack_of_hardware_queues(), std::nullopt) << enough;
  }
  for (const char* const few : {"1", "7", "", "many"}) {
    ::setenv("CUDA_DEVICE_MAX_CONNECTIONS", few, 1);
    EXPECT_THAT(lack_of_hardware_queues(), Optional(AllOf(HasSubstr(few), HasSubstr("Unset it")))) << few;
  }
}

TEST_F(GpuEnvironment, ListsWhatNcclReads) {
  ::setenv("NCCL_NVLS_ENABLE", "0", 1);
  ::setenv("NCCL_LAUNCH_ORDER_IMPLICIT", "1", 1);
  EXPECT_THAT(nccl_settings(), HasSubstr("NCCL_LAUNCH_ORDER_IMPLICIT=1 NCCL_NVLS_ENABLE=0"));
}

}  // namespace
}  // namespace copus
