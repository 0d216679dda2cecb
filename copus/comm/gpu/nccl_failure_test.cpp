// Tests how a job over NCCL ends after a failure: within the deadline, on every rank, with a failure that names the
// cause, and without a stream that waits forever.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <functional>
#include <optional>
#include <stdexcept>
#include <string>
#include <thread>

#include "copus/base/error.h"
#include "copus/comm/health/shared_health.h"
#include "copus/comm/testing/nccl_test_support.h"

namespace copus {
namespace {

using testing::AllOf;
using testing::HasSubstr;

constexpr double short_wait_seconds = 2;
constexpr int64_t max_ranks = 3;

// Runs ranks that must all end with RankFailure and abort all their communicators. Returns the failure, which must be
// the same on all ranks.
FailureReport failure_of(int64_t size, MockNccl& nccl, const std::function<void(NcclRank&)>& body,
                         double wait_seconds = short_wait_seconds) {
  std::array<std::optional<FailureReport>, max_ranks> failures;
  const auto note = [&](NcclRank& rank) {
    try {
      body(rank);
      ADD_FAILURE() << "rank " << rank.rank() << " has seen no failure";
    } catch (const RankFailure& failure) {
      failures[rank.rank()] = failure.report();
    }
  };
  run_over_nccl(size, nccl, note, wait_seconds);
  EXPECT_EQ(nccl.mistakes(), std::vector<std::string>{});
  for (int64_t rank = 0; rank < size; ++rank) {
    if (!uses_real_nccl()) {
      EXPECT_GT(nccl.aborts(rank), 0) << "rank " << rank;
    }
    EXPECT_EQ(nccl.communicators(rank), 0) << "rank " << rank;
    const auto& failure = failures[rank];
    if (!failure || !failures[0]) continue;
    EXPECT_EQ(to_string(*failure), to_string(*failures[0]));
  }
  return failures[0].value_or(FailureReport{});
}

// Waits on the host for a message that nobody sends, until the job's failure ends the wait.
void wait_for_failure(NcclRank& rank) {
  int64_t never = 0;
  rank.world.everyone().receive(&never, 1, DataType::int64, (rank.rank() + 1) % rank.world.size());
}

TEST(NcclFailure, OfARankThatNeverComesToACollective) {
  MockNccl nccl;
  const FailureReport failure = failure_of(3, nccl, [](NcclRank& rank) {
    rank.world.require({{.ranks = {0, 1, 2}}});
    Communicator& everyone = rank.world.everyone();
    const DeviceBytes data(rank, Bytes(8));
    if (rank.rank() < 2) {
      everyone.all_reduce(data.data(), 1, DataType::float64);
      rank.device.synchronize(rank.device.current_stream());  // an abort releases the stream
      EXPECT_THROW(everyone.all_reduce(data.data(), 1, DataType::float64), RankFailure);
      EXPECT_THROW(everyone.start(Operation::broadcast(data.data(), 1, DataType::float64, 0)), RankFailure);
      EXPECT_THROW(rank.world.require({{.ranks = {0, 1, 2}}}), RankFailure);
    }
    wait_for_failure(rank);
  });
  EXPECT_EQ(failure.rank, -1);
  EXPECT_THAT(failure.cause, AllOf(HasSubstr("over NCCL, rank "), HasSubstr(" has waited 2 s for ranks "),
                                   HasSubstr("2"), HasSubstr("(all_reduce, group 0 1 2)")));
}

TEST(NcclFailure, OfARankThatSendsNothing) {
  MockNccl nccl;
  const FailureReport failure = failure_of(3, nccl, [](NcclRank& rank) {
    rank.world.require({{.ranks = {0, 1, 2}, .messages = GroupUse::Messages::line}});
    const DeviceBytes data(rank, Bytes(8));
    if (rank.rank() == 0) {
      rank.world.everyone().receive(data.data(), 8, DataType::byte, 1);
      rank.device.synchronize(rank.device.current_stream());
    }
    wait_for_failure(rank);
  });
  EXPECT_EQ(failure.rank, 1);
  EXPECT_EQ(failure.cause, "over NCCL, rank 0 has waited 2 s for it (receive, messages between 0 and 1)");
}

// The first use of a connection blocks the host inside NCCL.
TEST(NcclFailure, OfARankThatIsWaitedForWithinACall) {
  MockNccl nccl;
  const FailureReport failure = failure_of(2, nccl, [](NcclRank& rank) {
    rank.world.require({{.ranks = {0, 1}, .exchanges = true}});
    const DeviceBytes data(rank, Bytes(8));
    if (rank.rank() == 1) {
      const std::array<Communicator::Message, 1> outgoing = {{{0, data.data(), 8}}};
      rank.world.everyone().exchange(outgoing, {});
    }
    wait_for_failure(rank);
  });
  EXPECT_EQ(failure.rank, 0);
  EXPECT_EQ(failure.cause, "over NCCL, rank 1 has waited 2 s for it (exchange, exchanges of 0 1)");
}

// An older library cannot make a thread return from NCCL. The communicator that the thread is inside is never freed.
TEST(NcclFailure, NeverFreesACommunicatorThatAThreadIsInside) {
  if (uses_real_nccl()) GTEST_SKIP() << needs_the_mock;
  MockNccl nccl;
  nccl.set_irrevocable();
  const auto body = [&](NcclRank& rank) {
    rank.world.require({{.ranks = {0, 1}, .exchanges = true}});
    const DeviceBytes data(rank, Bytes(8));
    try {
      if (rank.rank() == 1) {
        const std::array<Communicator::Message, 1> outgoing = {{{0, data.data(), 8}}};
        rank.world.everyone().exchange(outgoing, {});
      }
      wait_for_failure(rank);
    } catch (const RankFailure&) {
      if (rank.rank() == 1) throw;
    }
    while (rank.nccl.aborts(1) < 2) std::this_thread::yield();  // of the parent and the collectives
    rank.nccl.let_go();
  };
  EXPECT_THROW(run_over_nccl(2, nccl, body, short_wait_seconds), RankFailure);
  EXPECT_EQ(nccl.mistakes(), std::vector<std::string>{});
}

TEST(NcclFailure, OfASplitThatNeverEnds) {
  if (uses_real_nccl()) GTEST_SKIP() << needs_the_mock;
  MockNccl nccl;
  nccl.hold_splits();
  const FailureReport failure = failure_of(3, nccl, [](NcclRank& rank) { rank.world.require({{.ranks = {0, 1, 2}}}); });
  EXPECT_THAT(failure.cause, AllOf(HasSubstr("has waited 2 s for ranks"), HasSubstr("(connecting, group 0 1 2)")));
}

TEST(NcclFailure, ThatNcclNoticesOnItsOwn) {
  if (uses_real_nccl()) GTEST_SKIP() << needs_the_mock;
  MockNccl nccl;
  const FailureReport failure = failure_of(
      2, nccl,
      [](NcclRank& rank) {
        rank.world.require({{.ranks = {0, 1}}});
        rank.world.everyone().barrier();
        if (rank.rank() == 0) rank.nccl.set_async_error(1, NcclResult::system_error);
        wait_for_failure(rank);
      },
      patient_seconds);
  EXPECT_EQ(failure.rank, 1);
  EXPECT_EQ(failure.cause, "NCCL: unhandled system error");
}

// NCCL notices a broken connection before the death of the rank's process is known.
TEST(NcclFailure, OfARankThatDiesIsToldByHealth) {
  if (uses_real_nccl()) GTEST_SKIP() << needs_the_mock;
  MockNccl nccl;
  const FailureReport failure = failure_of(
      3, nccl,
      [](NcclRank& rank) {
        rank.world.require({{.ranks = {0, 1, 2}}});
        rank.world.everyone().barrier();
        if (rank.rank() == 1) {
          rank.nccl.set_async_error(0, NcclResult::remote_error);
          for (int64_t look = 0; look < 100; ++look) std::this_thread::yield();
          rank.world.health().report({.rank = 1, .place = "", .cause = "killed by signal 9 (Killed)"});
        }
        wait_for_failure(rank);
      },
      patient_seconds);
  EXPECT_EQ(failure.rank, 1);
  EXPECT_EQ(failure.cause, "killed by signal 9 (Killed)");
}

TEST(NcclFailure, OfOneRankFreesTheOthers) {
  MockNccl nccl;
  const auto body = [](NcclRank& rank) {
    rank.world.require({{.ranks = {0, 1, 2}, .messages = GroupUse::Messages::line}});
    Communicator& everyone = rank.world.everyone();
    const DeviceBytes data(rank, Bytes(8)), other(rank, Bytes(8));
    if (rank.rank() == 2) throw std::runtime_error("rank 2's own error");
    const int64_t next = rank.rank() + 1;
    const Work send = everyone.start_send(other.data(), 8, DataType::byte, next);
    everyone.all_reduce(data.data(), 1, DataType::float64);
    rank.device.synchronize(rank.device.current_stream());
    wait_for_failure(rank);
  };
  try {
    run_over_nccl(3, nccl, body);
    ADD_FAILURE() << "nothing was thrown";
  } catch (const std::runtime_error& error) {
    EXPECT_STREQ(error.what(), "rank 2's own error");
  }
  EXPECT_EQ(nccl.mistakes(), std::vector<std::string>{});
  for (int64_t rank = 0; rank < 3; ++rank) EXPECT_EQ(nccl.communicators(rank), 0) << "rank " << rank;
}

// Closing a communicator blocks the host inside NCCL. Therefore closing begins only when all ranks have reached it.
TEST(NcclFailure, OfARankThatDiesWhileAnotherCloses) {
  MockNccl nccl;
  const auto body = [](NcclRank& rank) {
    rank.world.require({{.ranks = {0, 1}}});
    if (rank.rank() == 0) return;
    for (int64_t look = 0; look < 100; ++look) std::this_thread::yield();
    throw std::runtime_error("rank 1's own error");
  };
  try {
    run_over_nccl(2, nccl, body);
    ADD_FAILURE() << "nothing was thrown";
  } catch (const std::runtime_error& error) {
    EXPECT_STREQ(error.what(), "rank 1's own error");
  }
  EXPECT_EQ(nccl.ends(), 0);
  EXPECT_EQ(nccl.mistakes(), std::vector<std::string>{});
  for (int64_t rank = 0; rank < 2; ++rank) EXPECT_EQ(nccl.communicators(rank), 0) << "rank " << rank;
}

// When the device of a rank waits for a stalled rank, its queue may fill up and block the rank's host for just as long.
TEST(NcclFailure, ARankWhoseDeviceWaitsIsNotTheOneThatStalls) {
  std::atomic<bool> has_begun = false;
  run_over_nccl(2, [&](NcclRank& rank) {
    const auto& health = dynamic_cast<const SharedHealth&>(rank.world.health());
    rank.world.require({{.ranks = {0, 1}}});
    const DeviceBytes data(rank, Bytes(8));
    while (rank.rank() == 1 && (!has_begun || !health.signs_of(0).waiting)) rank.world.health().check();
    rank.world.everyone().all_reduce(data.data(), 1, DataType::float64);
    has_begun = true;
    rank.device.synchronize(rank.device.current_stream());
    while (health.signs_of(rank.rank()).waiting) rank.world.health().check();
  });
}

TEST(NcclFailure, OfRanksThatPrepareDifferentGroupsIsABug) {
  if (uses_real_nccl()) GTEST_SKIP() << needs_the_mock;
  MockNccl nccl;
  const auto body = [](NcclRank& rank) {
    const bool is_last = rank.rank() == 2;
    const std::vector<int64_t> pair = is_last ? std::vector<int64_t>{1, 2} : std::vector<int64_t>{2, 1};
    rank.world.require({{.ranks = {0, 1, 2}}, {.ranks = pair}});
  };
  EXPECT_THROW(run_over_nccl(3, nccl, body), InternalError);
  EXPECT_EQ(nccl.splits().size(), 0u);
}

}  // namespace
}  // namespace copus
