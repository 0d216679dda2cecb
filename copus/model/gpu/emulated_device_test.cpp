// Tests the emulated GPU: how threads wait for each other, and the faults that it detects.
#include "copus/model/gpu/emulated_device.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>
#include <vector>

#include "copus/model/gpu/device_code.h"

namespace copus::gpu {
namespace {

using testing::HasSubstr;
using testing::ThrowsMessage;

class EmulatedDevice : public testing::TestWithParam<std::tuple<int, bool>> {
 protected:
  EmulatedDevice() {
    emulated::device().warp_size = std::get<0>(GetParam());
    emulated::device().last_thread_first = std::get<1>(GetParam());
  }
  ~EmulatedDevice() override { emulated::device() = before_; }

 private:
  const emulated::Device before_ = emulated::device();
};

struct Numbers {
  int64_t* values;
};

TEST_P(EmulatedDevice, ThreadsExchangeAndMeet) {
  std::vector<int64_t> sums(6 * 192);
  launch(
      +[](Numbers a) {
        COPUS_SHARED(int64_t, reversed, 192);
        reversed[191 - thread_index()] = thread_index();
        synchronize_block();
        const int64_t block = block_index_y() * grid_blocks() + block_index();
        const int64_t sum = sum_over_block<int64_t>(reversed[thread_index()] * 1000 + block);
        a.values[block * 192 + thread_index()] = sum + thread_index();
      },
      {3, 2}, 192, nullptr, Numbers{sums.data()});
  for (int64_t i = 0; i < static_cast<int64_t>(sums.size()); ++i) {
    EXPECT_EQ(sums[i], 192 * 191 / 2 * 1000 + 192 * (i / 192) + i % 192) << i;
  }
}

TEST_P(EmulatedDevice, SharedMemoryIsNewForEveryBlock) {
  std::vector<int64_t> values(64);
  launch(
      +[](Numbers a) {
        COPUS_SHARED(float, shared, 64);
        if (block_index() == 1 && std::isnan(shared[thread_index()])) a.values[thread_index()] = 1;
        shared[thread_index()] = 5;
      },
      {2}, 64, nullptr, Numbers{values.data()});
  EXPECT_EQ(std::accumulate(values.begin(), values.end(), int64_t{0}), 64);
}

TEST_P(EmulatedDevice, FindsThreadsThatDoNotMeet) {
  const auto never_meets = ThrowsMessage<InternalError>(HasSubstr("have ended or wait elsewhere"));
  const auto start = [](void (*kernel)(Numbers)) { launch(kernel, {1}, 128, nullptr, Numbers{}); };
  EXPECT_THAT(
      [&] {
        start(+[](Numbers) {
          if (thread_index() > 5) synchronize_block();
        });
      },
      never_meets);
  EXPECT_THAT(
      [&] {
        start(+[](Numbers) {
          if (thread_index() > 5) shuffle_xor(1, 1);
        });
      },
      never_meets);
  EXPECT_THAT([&] { start(+[](Numbers) { thread_index() > 5 ? (void)shuffle_xor(1, 1) : synchronize_block(); }); },
              never_meets);
  EXPECT_THAT([&] { start(+[](Numbers) { shuffle_xor(1, thread_index() == 3 ? 2 : 1); }); },
              ThrowsMessage<InternalError>(HasSubstr("different shuffles")));
}

TEST_P(EmulatedDevice, FindsIndicesBeyondSharedMemory) {
  const auto kernel = +[](Numbers) {
    COPUS_SHARED(float, shared, 100);
    shared[thread_index()] = 1;
  };
  EXPECT_THAT([&] { launch(kernel, {1}, 128, nullptr, Numbers{}); },
              ThrowsMessage<InternalError>(HasSubstr("of 100 in shared memory")));
}

INSTANTIATE_TEST_SUITE_P(, EmulatedDevice, testing::Combine(testing::Values(32, 64), testing::Bool()),
                         [](const auto& parameter) {
                           return "Warp" + std::to_string(std::get<0>(parameter.param)) +
                                  (std::get<1>(parameter.param) ? "LastFirst" : "FirstFirst");
                         });

}  // namespace
}  // namespace copus::gpu
