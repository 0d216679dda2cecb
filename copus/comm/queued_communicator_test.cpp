#include "copus/comm/queued_communicator.h"

#include <gtest/gtest.h>

#include <atomic>
#include <functional>
#include <future>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <thread>

#include "copus/base/error.h"
#include "copus/comm/solo_communicator.h"

namespace copus {
namespace {

// Records the kind, size and thread of each operation in order. Operations of the size `held` wait for release().
class NotingTransport : public Transport {
 public:
  static constexpr int64_t held = 1000;
  static constexpr int64_t failing = 1001;

  void all_reduce(const Operation& operation) override { note("all_reduce", operation.count); }
  void reduce_scatter(const Operation& operation) override { note("reduce_scatter", operation.counts[0]); }
  void all_gather(const Operation& operation) override { note("all_gather", operation.counts[0]); }
  void broadcast(const Operation& operation) override { note("broadcast", operation.count); }
  void barrier() override { note("barrier", 0); }
  void send(const void* /*data*/, int64_t bytes, int64_t to) override { note("send to " + std::to_string(to), bytes); }
  void receive(void* /*data*/, int64_t bytes, int64_t /*from*/) override { note("receive", bytes); }
  bool try_send(const void* /*data*/, int64_t bytes, int64_t to) override {
    if (bytes >= held) return false;
    note("try_send to " + std::to_string(to), bytes);
    return true;
  }

  void release() { released_->set_value(); }
  // Returns a function that has the effect of release() and may be called after this transport has been destroyed.
  std::function<void()> releaser() const {
    return [released = released_] { released->set_value(); };
  }
  std::vector<std::string> noted() {
    const std::scoped_lock lock(mutex_);
    return noted_;
  }

 private:
  void note(const std::string& what, int64_t size) {
    if (size == held) release_.wait();
    if (size == failing) throw std::runtime_error("the link broke");
    const std::scoped_lock lock(mutex_);
    const bool own_thread = std::this_thread::get_id() == caller_;
    noted_.push_back(concat(own_thread ? "" : "later: ", what, " ", size));
  }

  const std::thread::id caller_ = std::this_thread::get_id();
  std::shared_ptr<std::promise<void>> released_ = std::make_shared<std::promise<void>>();
  std::shared_future<void> release_ = released_->get_future().share();
  std::mutex mutex_;
  std::vector<std::string> noted_;
};

class QueuedCommunicatorTest : public testing::Test {
 protected:
  static constexpr int64_t held = NotingTransport::held;
  static constexpr int64_t failing = NotingTransport::failing;

  NotingTransport* transport_ = new NotingTransport;
  QueuedCommunicator communicator_{{4, 5, 6}, 1, std::unique_ptr<Transport>(transport_)};
  std::vector<int64_t> counts_ = {7, 8, 9};

  Work start_all_reduce(int64_t count) {
    return communicator_.start_all_reduce(nullptr, count, DataType::byte, Reduction::sum);
  }
  Work start_send(int64_t count, int64_t to) { return communicator_.start_send(nullptr, count, DataType::byte, to); }
};

TEST_F(QueuedCommunicatorTest, RunsBlockingOperationsOnTheCaller) {
  communicator_.all_reduce(nullptr, 1, DataType::byte);
  communicator_.reduce_scatter(nullptr, nullptr, counts_, DataType::byte);
  communicator_.all_gather(nullptr, nullptr, counts_, DataType::byte);
  communicator_.broadcast(nullptr, 2, DataType::float32, 0);
  communicator_.barrier();
  communicator_.send(nullptr, 3, DataType::int64, 2);
  communicator_.receive(nullptr, 4, DataType::bfloat16, 2);
  EXPECT_EQ(transport_->noted(), (std::vector<std::string>{"all_reduce 1", "reduce_scatter 7", "all_gather 7",
                                                           "broadcast 2", "barrier 0", "send to 2 24", "receive 8"}));
}

TEST_F(QueuedCommunicatorTest, RunsWhatWasStartedInOrderAndBlockingOperationsAfterIt) {
  const Work first = start_all_reduce(held);
  const Work second = communicator_.start_all_gather(nullptr, nullptr, counts_, DataType::byte);
  counts_.assign(3, 0);  // needed only at the start
  EXPECT_FALSE(first.done());
  EXPECT_FALSE(second.done());
  EXPECT_TRUE(transport_->noted().empty());
  transport_->release();
  communicator_.barrier();
  EXPECT_EQ(transport_->noted(),
            (std::vector<std::string>{"later: all_reduce 1000", "later: all_gather 7", "barrier 0"}));
  first.wait();
  second.wait();
  EXPECT_TRUE(first.done() && second.done());
}

TEST_F(QueuedCommunicatorTest, SendsAtOnceUnlessAnEarlierMessageToTheSameMemberWaits) {
  EXPECT_TRUE(start_send(1, 0).done());
  const Work large = start_send(held, 0);
  const Work behind = start_send(2, 0);
  EXPECT_TRUE(start_send(3, 2).done());
  EXPECT_FALSE(behind.done());
  transport_->release();
  large.wait();
  behind.wait();
  EXPECT_EQ(transport_->noted(), (std::vector<std::string>{"try_send to 0 1", "try_send to 2 3",
                                                           "later: send to 0 1000", "later: send to 0 2"}));
}

TEST_F(QueuedCommunicatorTest, ThrowsWhatAnOperationThrewAndRunsNoneAfterIt) {
  const Work bad = start_all_reduce(failing);
  const Work after = start_all_reduce(5);
  EXPECT_THROW(bad.wait(), std::runtime_error);
  EXPECT_THROW(after.wait(), std::runtime_error);
  EXPECT_THROW(communicator_.barrier(), std::runtime_error);
  EXPECT_TRUE(bad.done());
  EXPECT_TRUE(transport_->noted().empty());
}

TEST(QueuedCommunicator, ThatEndsBeforeItsOperationsDropsThemWithAnError) {
  auto* const transport = new NotingTransport;
  auto communicator =
      std::make_unique<QueuedCommunicator>(std::vector<int64_t>{4, 5}, 0, std::unique_ptr<Transport>(transport));
  const auto start = [&](int64_t count) {
    return communicator->start_all_reduce(nullptr, count, DataType::byte, Reduction::sum);
  };
  std::vector<Work> started{start(NotingTransport::held)};
  for (int64_t i = 0; i < 1000; ++i) started.push_back(start(1));
  std::thread later([release = transport->releaser()] {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));  // meanwhile the destructor usually waits
    release();
  });
  communicator.reset();
  later.join();
  // All waits return, but how many operations were dropped depends on how far the threads had come.
  for (const Work& work : started) {
    EXPECT_TRUE(work.done());
    try {
      work.wait();
    } catch (const InternalError&) {  // NOLINT(bugprone-empty-catch): dropped or not, it is over
    }
  }
}

TEST_F(QueuedCommunicatorTest, RefusesArgumentsThatDoNotFitTheGroup) {
  counts_.pop_back();
  EXPECT_THROW(communicator_.all_gather(nullptr, nullptr, counts_, DataType::byte), InternalError);
  EXPECT_THROW(communicator_.broadcast(nullptr, 1, DataType::byte, 3), InternalError);
  EXPECT_THROW(communicator_.send(nullptr, 1, DataType::byte, 1), InternalError);
  EXPECT_THROW(communicator_.receive(nullptr, 1, DataType::byte, -1), InternalError);
}

TEST(GroupOfOne, DoesEverythingAtOnce) {
  SoloCommunicator alone(3);
  std::vector<float> data = {1, 2};
  const std::vector<int64_t> counts = {2};
  EXPECT_TRUE(alone.start_all_reduce(data.data(), 2, DataType::float32, Reduction::sum).done());
  std::vector<float> scattered(2);
  EXPECT_TRUE(
      alone.start_reduce_scatter(data.data(), scattered.data(), counts, DataType::float32, Reduction::sum).done());
  std::vector<float> gathered(2);
  EXPECT_TRUE(alone.start_all_gather(data.data(), gathered.data(), counts, DataType::float32).done());
  alone.broadcast(data.data(), 2, DataType::float32, 0);
  alone.barrier();
  EXPECT_EQ(scattered, data);
  EXPECT_EQ(gathered, data);
}

}  // namespace
}  // namespace copus
