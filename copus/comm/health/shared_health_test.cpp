#include "copus/comm/health/shared_health.h"

#include <gtest/gtest.h>
#include <unistd.h>

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
  static constexpr int64_t size = 3;
  std::vector<Line> memory_ = std::vector<Line>((health_bytes(size) + 63) / 64);

  std::byte* region() { return memory_.front().bytes; }
};

TEST_F(SharedHealthTest, ShowsThePlaceOfEachRankToTheOthers) {
  SharedHealth first(region(), 0, size);
  SharedHealth last(region(), 2, size);
  EXPECT_EQ(first.place_of(2), "");
  last.set_place("step 12, backward of micro-batch 3");
  first.set_place(std::string(200, 'x'));
  EXPECT_EQ(first.place_of(2), "step 12, backward of micro-batch 3");
  EXPECT_EQ(last.place_of(0), std::string(95, 'x'));
  last.set_place("step 13");
  EXPECT_EQ(first.place_of(2), "step 13");
}

TEST_F(SharedHealthTest, NeverShowsHalfAPlace) {
  SharedHealth writer(region(), 0, size);
  const SharedHealth reader(region(), 1, size);
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

TEST_F(SharedHealthTest, TheFirstReportCountsOnEveryRank) {
  SharedHealth rank(region(), 1, size);
  SharedHealth watcher(region(), size, size);
  EXPECT_FALSE(rank.failure().has_value());
  EXPECT_NO_THROW(rank.check());
  watcher.report({2, "step 3, optimizer", "killed by signal 9 (Killed)"});
  rank.report({0, "", "too late"});
  watcher.report({0, "", "too late as well"});
  const auto found = SharedHealth(region(), 0, size).failure();
  ASSERT_TRUE(found.has_value());
  EXPECT_EQ(found->rank, 2);
  EXPECT_EQ(to_string(*found), "rank 2 failed at step 3, optimizer: killed by signal 9 (Killed)");
  EXPECT_THROW(rank.check(), RankFailure);
}

TEST_F(SharedHealthTest, OneOfManyReportsAtOnceIsKeptWhole) {
  std::vector<std::thread> threads;
  for (int64_t rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      SharedHealth health(region(), rank, size);
      health.report({rank, "place " + std::to_string(rank), "cause " + std::to_string(rank)});
      const auto found = health.failure();
      EXPECT_EQ(found->place, "place " + std::to_string(found->rank));
      EXPECT_EQ(found->cause, "cause " + std::to_string(found->rank));
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST_F(SharedHealthTest, ShowsTheSignsOfEachRank) {
  SharedHealth first(region(), 0, size);
  SharedHealth other(region(), 1, size);
  RankSigns signs = other.signs_of(0);
  EXPECT_EQ(signs.pid, 0);
  EXPECT_EQ(signs.heartbeats, 0);
  EXPECT_FALSE(signs.left);
  EXPECT_FALSE(signs.waiting);
  first.beat();
  first.beat();
  first.set_expected_step_seconds(1.5);
  first.begin_wait();
  signs = other.signs_of(0);
  EXPECT_EQ(signs.pid, ::getpid());
  EXPECT_EQ(signs.heartbeats, 2);
  EXPECT_EQ(signs.expected_step_seconds, 1.5);
  EXPECT_TRUE(signs.waiting);
  const uint64_t progress = signs.progress;
  first.end_wait();
  EXPECT_FALSE(other.signs_of(0).waiting);
  EXPECT_GT(other.signs_of(0).progress, progress);
  first.leave();
  EXPECT_TRUE(other.signs_of(0).left);
  EXPECT_EQ(other.signs_of(1).heartbeats, 0);
}

TEST_F(SharedHealthTest, ALauncherTellsTheUser) {
  SharedHealth launcher(region(), size, size);
  SharedHealth rank(region(), 1, size);
  launcher.become_launcher();
  launcher.set_process(2, 4711);
  rank.beat();
  testing::internal::CaptureStderr();
  rank.report({2, "step 3", "no heartbeat for 3 s"});
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "");
  ASSERT_TRUE(launcher.failure());
  EXPECT_TRUE(launcher.failure()->announced);
  EXPECT_EQ(to_string(*launcher.failure()), "rank 2 (pid 4711) failed at step 3: no heartbeat for 3 s");
}

TEST_F(SharedHealthTest, WithoutALauncherTheFirstWatchedRankTellsTheUser) {
  SharedHealth first(region(), 0, size);
  SharedHealth second(region(), 1, size);
  first.beat();
  second.beat();
  testing::internal::CaptureStderr();
  second.report({2, "step 3", "stalled: made no progress for 60 s"});
  first.report({2, "step 3", "stalled: made no progress for 60 s"});
  EXPECT_EQ(testing::internal::GetCapturedStderr(),
            "copus: error: rank 2 failed at step 3: stalled: made no progress for 60 s; the job is ended\n");
  EXPECT_TRUE(first.failure()->announced);
}

TEST_F(SharedHealthTest, RanksAsThreadsLeaveTheTellingToTheProgram) {
  SharedHealth rank(region(), 0, size);
  testing::internal::CaptureStderr();
  rank.report({2, "", "did not come"});
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "");
  EXPECT_FALSE(rank.failure()->announced);
}

TEST_F(SharedHealthTest, ARankWithAnErrorOfItsOwnTellsTheUserItself) {
  SharedHealth rank(region(), 0, size);
  rank.beat();
  rank.set_place("step 3");
  testing::internal::CaptureStderr();
  rank.report_own_error();
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "");
  ASSERT_TRUE(rank.failure());
  EXPECT_EQ(rank.failure()->rank, 0);
  EXPECT_EQ(rank.failure()->place, "step 3");
}

}  // namespace
}  // namespace copus
