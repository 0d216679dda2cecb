// Tests the properties on which other tests rely: the fake device is late, and detects misuse.
#include "copus/comm/testing/fake_device_runtime.h"

#include <gtest/gtest-spi.h>
#include <gtest/gtest.h>

#include <array>

namespace copus {
namespace {

using Values = std::array<int64_t, 4>;

class FakeDeviceTest : public testing::Test {
 protected:
  static constexpr int64_t bytes = sizeof(Values);

  FakeDeviceRuntime device_;
  DeviceRuntime::Stream stream_ = device_.current_stream();
  std::shared_ptr<void> memory_ = device_.allocate(bytes), pinned_ = device_.allocate_pinned(bytes);
  Values& host_ = *new (pinned_.get()) Values{1, 2, 3, 4};

  Values read() {
    Values values{};
    device_.copy(values.data(), memory_.get(), bytes, stream_);  // not pinned: waits
    return values;
  }
};

TEST_F(FakeDeviceTest, KnowsItsMemory) {
  EXPECT_TRUE(device_.is_device_memory(memory_.get()));
  EXPECT_TRUE(device_.is_device_memory(static_cast<std::byte*>(memory_.get()) + bytes - 1));
  EXPECT_FALSE(device_.is_device_memory(pinned_.get()));
  EXPECT_FALSE(device_.is_device_memory(nullptr));
  EXPECT_GT(device_.memory().total_bytes, device_.memory().free_bytes);
}

TEST_F(FakeDeviceTest, CopiesInOrderAndLate) {
  device_.copy(memory_.get(), pinned_.get(), bytes, stream_);
  host_[0] = 10;  // before the copy, for which there was no wait yet
  EXPECT_EQ(read(), (Values{10, 2, 3, 4}));
  device_.launch([&] { device_.on_host<int64_t>(memory_.get())[1] = 20; }, stream_);
  device_.copy(pinned_.get(), memory_.get(), bytes, stream_);
  EXPECT_EQ(host_[1], 2);
  device_.synchronize(stream_);
  EXPECT_EQ(host_[1], 20);
}

TEST_F(FakeDeviceTest, EventsOrderStreams) {
  const DeviceRuntime::Stream other = device_.make_stream();
  device_.copy(memory_.get(), pinned_.get(), bytes, stream_);
  const auto written = device_.record(stream_);
  EXPECT_FALSE(written->done());
  device_.wait(other, *written);
  const auto back = device_.allocate_pinned(bytes);
  device_.copy(back.get(), memory_.get(), bytes, other);
  device_.record(other)->synchronize();
  EXPECT_EQ(*static_cast<Values*>(back.get()), host_);
  EXPECT_TRUE(written->done());
}

TEST_F(FakeDeviceTest, AStreamDoesNotWaitForAnotherByItself) {
  const DeviceRuntime::Stream other = device_.make_stream();
  device_.copy(memory_.get(), pinned_.get(), bytes, stream_);
  Values values{};
  device_.copy(values.data(), memory_.get(), bytes, other);
  EXPECT_EQ(values, Values{});
  EXPECT_EQ(read(), host_);
}

TEST_F(FakeDeviceTest, PollingAnEventEndsOnce) {
  device_.copy(memory_.get(), pinned_.get(), bytes, stream_);
  const auto event = device_.record(stream_);
  while (!event->done()) std::this_thread::yield();
  EXPECT_EQ(read(), host_);
}

TEST_F(FakeDeviceTest, GoesOnByItselfIfAsked) {
  FakeDeviceRuntime restless({.runs_by_itself = true});
  std::mutex mutex;
  std::condition_variable ended;
  bool done = false;
  restless.launch(
      [&] {
        const std::scoped_lock lock(mutex);
        done = true;
        ended.notify_all();
      },
      restless.current_stream());
  std::unique_lock lock(mutex);
  ended.wait(lock, [&] { return done; });
}

TEST(FakeDevice, NoticesMemoryThatIsFreedTooEarly) {
  auto device = std::make_unique<FakeDeviceRuntime>();
  auto on_device = device->allocate(8), pinned = device->allocate_pinned(8);
  device->copy(pinned.get(), on_device.get(), 8, device->current_stream());
  EXPECT_NONFATAL_FAILURE(pinned.reset(), "freed");
  EXPECT_NONFATAL_FAILURE(on_device.reset(), "freed");
  device.reset();  // without the copy, whose destination would be gone
}

TEST_F(FakeDeviceTest, TheHostCannotTouchItsMemory) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_DEATH(*static_cast<volatile int64_t*>(memory_.get()) = 1, "");
}

}  // namespace
}  // namespace copus
