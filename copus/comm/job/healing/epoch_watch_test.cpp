// Tests how reports from ranks on several machines are combined.
#include "copus/comm/job/healing/epoch_watch.h"

#include <gtest/gtest.h>

namespace copus {
namespace {

const FailureReport broke{2, "step 7", "its process ended, or the network to its machine broke", 12};

FromRank left_for(const FailureReport& failure, double step_seconds = 0) {
  return {FromRank::Kind::left, failure, step_seconds};
}

TEST(ReportsWatch, KeepsTheFirstReport) {
  ReportsWatch watch(3);
  watch.set_process(2, 12);
  EXPECT_FALSE(watch.failure());
  watch.hear(0, left_for(broke));
  watch.hear(1, left_for({0, "", "its process ended, or the network to its machine broke"}));
  EXPECT_EQ(watch.failure()->rank, 2);
  EXPECT_EQ(watch.failure()->pid, 12);
  EXPECT_TRUE(watch.has_left(0));
  EXPECT_FALSE(watch.has_left(2));
}

TEST(ReportsWatch, KnowsHowAProcessEndedFromItsLauncherAndWhereFromItsPeers) {
  ReportsWatch watch(3);
  const FailureReport judged{2, "", "killed by signal 9 (Killed)", 12, true};
  watch.report(judged);
  watch.hear(0, left_for(broke));
  EXPECT_EQ(to_string(watch.told_of(judged, false)), "rank 2 (pid 12) failed at step 7: killed by signal 9 (Killed)");
}

TEST(ReportsWatch, NamesWhatItsPeersSawOfARankThatWasKilledForIt) {
  ReportsWatch watch(3);
  watch.hear(1, left_for({2, "step 7", "no heartbeat for 3 s"}));
  const FailureReport by_us{2, "", "it did not leave the epoch in time", 12, true};
  EXPECT_EQ(watch.told_of(by_us, true).cause, "no heartbeat for 3 s");
  EXPECT_EQ(watch.told_of({1, "", by_us.cause}, true).cause, by_us.cause) << "nobody had said anything of this one";
}

TEST(ReportsWatch, BelievesWhatARankSaysOfItself) {
  ReportsWatch watch(3);
  watch.hear(2, left_for({2, "step 7", "it ended with an error of its own"}));
  EXPECT_FALSE(watch.has_left(2));
  EXPECT_EQ(to_string(watch.told_of({2, "", "it exited with code 1", 12}, false)),
            "rank 2 (pid 12) failed at step 7: it ended with an error of its own");
}

TEST(ReportsWatch, IgnoresReportsOfRanksThatThereAreNot) {
  ReportsWatch watch(3);
  watch.hear(0, left_for({3, "", "?"}));
  watch.hear(1, left_for({-2, "", "?"}));
  EXPECT_FALSE(watch.failure());
}

TEST(ReportsWatch, NamesWhoIsStoppedForTwoSeconds) {
  ReportsWatch watch(2);
  watch.set_stopped(1, true);
  for (int64_t look = 0; look < 3; ++look) EXPECT_FALSE(watch.look(100)) << "this launcher was stopped itself";
  EXPECT_TRUE(watch.is_stopped(1));
  watch.set_stopped(1, false);
  EXPECT_FALSE(watch.look(0.5));
  watch.set_stopped(1, true);
  for (int64_t look = 0; look < 3; ++look) EXPECT_FALSE(watch.look(0.5));
  const auto report = watch.look(0.5);
  ASSERT_TRUE(report);
  EXPECT_EQ(report->rank, 1);
  EXPECT_EQ(report->cause, "stopped (SIGSTOP)");
}

TEST(ReportsWatch, KnowsWhoHasJoinedAndHowLongStepsAre) {
  ReportsWatch watch(2);
  watch.hear(1, {FromRank::Kind::joined});
  EXPECT_FALSE(watch.has_joined(0));
  EXPECT_TRUE(watch.has_joined(1));
  watch.hear(0, {FromRank::Kind::left, {}, 20});
  watch.hear(1, {FromRank::Kind::left, {}, 10});
  EXPECT_EQ(watch.longest_step_seconds(), 20);
}

}  // namespace
}  // namespace copus
