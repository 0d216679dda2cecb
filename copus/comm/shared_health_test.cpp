#include "copus/comm/shared_health.h"

#include <gtest/gtest.h>

#include <atomic>
#include <thread>
#include <vector>

namespace copus {
namespace {

class SharedHealthTest : public testing::Test {
 protected:
  struct alignas(64) Line {
    std::byte bytes[64] = {};
  };
  static constexpr int64_t size_ = 3;
  std::vector<Line> memory_ = std::vector<Line>((health_bytes(size_) + 63) / 64);

  std::byte* region() { return memory_.front().bytes; }
};

TEST_F(SharedHealthTest, shows_the_place_of_each_rank_to_the_others) {
  SharedHealth first(region(), 0, size_);
  SharedHealth last(region(), 2, size_);
  EXPECT_EQ(first.place_of(2), "");
  last.set_place("step 12, backward of micro-batch 3");
  first.set_place(std::string(200, 'x'));
  EXPECT_EQ(first.place_of(2), "step 12, backward of micro-batch 3");
  EXPECT_EQ(last.place_of(0), std::string(95, 'x'));
  last.set_place("step 13");
  EXPECT_EQ(first.place_of(2), "step 13");
}

TEST_F(SharedHealthTest, never_shows_half_a_place) {
  SharedHealth writer(region(), 0, size_);
  const SharedHealth reader(region(), 1, size_);
  const std::string a(90, 'a');
  const std::string b(90, 'b');
  writer.set_place(a);
  std::atomic<bool> stop = false;
  std::thread thread([&] {
    for (bool even = false; !stop; even = !even) writer.set_place(even ? a : b);
  });
  for (int i = 0; i < 2000; ++i) {
    const std::string seen = reader.place_of(0);
    EXPECT_TRUE(seen == a || seen == b) << seen;
  }
  stop = true;
  thread.join();
}

TEST_F(SharedHealthTest, the_first_report_counts_on_every_rank) {
  SharedHealth rank(region(), 1, size_);
  SharedHealth watcher(region(), size_, size_);
  EXPECT_FALSE(rank.failure().has_value());
  EXPECT_NO_THROW(rank.check());
  watcher.report({2, "step 3, optimizer", "killed by signal 9 (Killed)"});
  rank.report({0, "", "too late"});
  watcher.report({0, "", "too late as well"});
  const auto found = SharedHealth(region(), 0, size_).failure();
  ASSERT_TRUE(found.has_value());
  EXPECT_EQ(found->rank, 2);
  EXPECT_EQ(to_string(*found), "rank 2 failed at step 3, optimizer: killed by signal 9 (Killed)");
  EXPECT_THROW(rank.check(), RankFailure);
}

TEST_F(SharedHealthTest, one_of_many_reports_at_once_is_kept_whole) {
  std::vector<std::thread> threads;
  for (int64_t rank = 0; rank < size_; ++rank) {
    threads.emplace_back([&, rank] {
      SharedHealth health(region(), rank, size_);
      health.report({rank, "place " + std::to_string(rank), "cause " + std::to_string(rank)});
      const auto found = health.failure();
      EXPECT_EQ(found->place, "place " + std::to_string(found->rank));
      EXPECT_EQ(found->cause, "cause " + std::to_string(found->rank));
    });
  }
  for (std::thread& thread : threads) thread.join();
}

}  // namespace
}  // namespace copus
