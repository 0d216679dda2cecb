// Tests properties of all ranks together: how a rank's failure ends the job, and the world of a single rank.
#include "copus/comm/world.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <stdexcept>

#include "copus/base/error.h"
#include "copus/base/testing/test_support.h"
#include "copus/comm/first_ranks_world.h"
#include "copus/comm/shared_memory/single_rank_world.h"
#include "copus/comm/testing/rank_threads.h"

namespace copus {
namespace {

// The deadline of waits that are meant to fail. It leaves enough time to start the ranks on any machine.
constexpr double short_wait_seconds = 1;

TEST(World, OfOneRankDoesEverythingAtOnce) {
  const auto world = single_rank_world();
  EXPECT_EQ(world->rank(), 0);
  EXPECT_EQ(world->size(), 1);
  double value = 3;
  world->everyone().all_reduce(&value, 1, DataType::float64);
  EXPECT_EQ(value, 3);
  EXPECT_EQ(&world->everyone(), &world->group({0}));
  EXPECT_FALSE(world->health().failure().has_value());
}

TEST(World, GivesEveryRankItsOwnNumberAndOneClock) {
  std::atomic<int64_t> seen = 0;
  run_ranks_as_threads(4, [&](World& world) {
    EXPECT_EQ(world.size(), 4);
    EXPECT_EQ(world.everyone().rank(), world.rank());
    seen += int64_t{1} << (8 * world.rank());
    // Times of different ranks are comparable: no rank leaves a barrier before the last one has entered it.
    double came = world.clock().now();
    EXPECT_GE(came, 0);
    world.everyone().all_reduce(&came, 1, DataType::float64, Reduction::maximum);
    EXPECT_GE(world.clock().now(), came);
    world.clock().advance_to(came + 0.001);
    EXPECT_GE(world.clock().now(), came + 0.001);
  });
  EXPECT_EQ(seen, 0x01010101);
}

TEST(World, OfItsFirstRanksLeavesTheOthersAlone) {
  run_ranks_as_threads(5, [](World& world) {
    if (world.rank() >= 3) {
      EXPECT_THROW(first_ranks(world, 3), InternalError);
    } else {
      const auto first = first_ranks(world, 3);
      EXPECT_EQ(first->size(), 3);
      EXPECT_EQ(first->rank(), world.rank());
      int64_t sum = world.rank() + 1;
      first->everyone().all_reduce(&sum, 1, DataType::int64);
      EXPECT_EQ(sum, 6);
      EXPECT_THROW(first->group({world.rank(), 4}), InternalError);
      EXPECT_EQ(&first->health(), &world.health());
      EXPECT_EQ(&first->clock(), &world.clock());
    }
    EXPECT_THROW(first_ranks(world, 6), InternalError);
    world.everyone().barrier();
  });
}

TEST(World, OfChosenRanksHasThemInTheirOrder) {
  run_ranks_as_threads(4, [](World& world) {
    const std::vector<int64_t> ranks = {3, 0, 2};
    if (world.rank() == 1) {
      EXPECT_THROW(chosen_ranks(world, ranks), InternalError);
    } else {
      const auto chosen = chosen_ranks(world, ranks);
      EXPECT_EQ(ranks[chosen->rank()], world.rank());
      int64_t first = world.rank();
      chosen->everyone().broadcast(&first, 1, DataType::int64, 0);
      EXPECT_EQ(first, 3);
      std::array<int64_t, 3> all{};
      const int64_t mine = world.rank();
      chosen->everyone().all_gather(&mine, all.data(), std::vector<int64_t>(3, 1), DataType::int64);
      EXPECT_EQ(all, (std::array<int64_t, 3>{3, 0, 2}));
      if (chosen->rank() > 0) {
        int64_t sum = world.rank();
        chosen->group({2, 1}).all_reduce(&sum, 1, DataType::int64);
        EXPECT_EQ(sum, 2);
      }
    }
    EXPECT_THROW(chosen_ranks(world, {world.rank(), 4}), InternalError);
    world.everyone().barrier();
  });
}

TEST(World, RefusesGroupsThatAreNone) {
  run_ranks_as_threads(3, [](World& world) {
    const int64_t other = (world.rank() + 1) % 3;
    EXPECT_THROW(world.group({other}), InternalError);
    EXPECT_THROW(world.group({world.rank(), other, world.rank()}), InternalError);
    EXPECT_THROW(world.group({world.rank(), 3}), InternalError);
    EXPECT_THROW(world.group({}), InternalError);
  });
}

// Runs three ranks, of which rank 1 does nothing, and returns the failure with which the others end.
FailureReport failure_without_rank_1(const std::function<void(World&)>& body) {
  try {
    run_ranks_as_threads(
        3,
        [&](World& world) {
          world.health().set_place(concat("step ", 10 + world.rank()));
          if (world.rank() != 1) body(world);
        },
        short_wait_seconds);
  } catch (const RankFailure& failure) {
    return failure.report();
  }
  return {};
}

TEST(World, NamesAMemberThatNeverComes) {
  const FailureReport report =
      failure_without_rank_1([](World& world) { EXPECT_THROW(world.everyone().barrier(), RankFailure); });
  EXPECT_EQ(report.rank, -1) << "the ranks caught it";
  const FailureReport barrier = failure_without_rank_1([](World& world) { world.everyone().barrier(); });
  EXPECT_EQ(barrier.rank, 1);
  EXPECT_EQ(barrier.place, "step 11");
  EXPECT_THAT(barrier.cause, testing::MatchesRegex("did not come to a barrier of ranks 0, 1, 2, for which rank . "
                                                   "waited 1 s"));
}

TEST(World, NamesAMemberThatNeverComesToWhatWasStarted) {
  std::vector<float> data(100'000);
  const std::vector<int64_t> counts = {50'000, 0, 50'000};
  const FailureReport report = failure_without_rank_1([&](World& world) {
    std::vector<float> own = data;
    world.everyone().start_reduce_scatter(own.data(), own.data(), counts, DataType::float32, Reduction::sum).wait();
  });
  EXPECT_EQ(report.rank, 1);
  EXPECT_THAT(report.cause, testing::HasSubstr("a reduce-scatter of ranks 0, 1, 2"));
}

TEST(World, NamesAllMembersThatNeverCome) {
  try {
    run_ranks_as_threads(
        4,
        [&](World& world) {
          world.health().set_place(concat("step ", 10 + world.rank()));
          if (world.rank() == 2) world.everyone().barrier();
        },
        short_wait_seconds);
    FAIL() << "nobody was missed";
  } catch (const RankFailure& failure) {
    EXPECT_EQ(failure.report().rank, 0);
    EXPECT_THAT(failure.what(), testing::HasSubstr("nor did rank 1 (step 11), 3 (step 13)"));
  }
}

TEST(World, NamesASenderAndAReceiverThatNeverCome) {
  const FailureReport sender = failure_without_rank_1([](World& world) {
    if (world.rank() != 0) return;
    int64_t data = 0;
    world.everyone().receive(&data, 1, DataType::int64, 1);
  });
  EXPECT_EQ(sender.rank, 1);
  EXPECT_THAT(sender.cause, testing::HasSubstr("a message"));
  const std::vector<std::byte> large(16 << 20);
  const FailureReport receiver = failure_without_rank_1([&](World& world) {
    if (world.rank() != 0) return;
    world.everyone().start_send(large.data(), std::ssize(large), DataType::byte, 1).wait();
  });
  EXPECT_EQ(receiver.rank, 1);
}

TEST(World, ARankThatThrowsEndsAllWaitsAndItsErrorIsTheJobS) {
  const std::vector<std::function<void(World&)>> waits = {
      [](World& world) { world.everyone().barrier(); },
      [](World& world) {
        std::vector<double> data(300'000);
        world.everyone().start_all_reduce(data.data(), std::ssize(data), DataType::float64, Reduction::sum).wait();
      },
      [](World& world) {
        char byte = 0;
        world.everyone().receive(&byte, 1, DataType::byte, 2);
      },
  };
  for (const auto& wait : waits) {
    std::atomic<int> echoes = 0;
    const auto body = [&](World& world) {
      if (world.rank() == 2) throw UserError("the data has no end");
      try {
        wait(world);
      } catch (const RankFailure& failure) {
        EXPECT_EQ(failure.report().rank, 2);
        EXPECT_EQ(failure.report().cause, "the data has no end");
        ++echoes;
        throw;
      }
    };
    EXPECT_EQ(user_error([&] { run_ranks_as_threads(4, body); }), "the data has no end");
    EXPECT_EQ(echoes, 3);
  }
}

TEST(World, RanksThatDoDifferentThingsFindOut) {
  EXPECT_THROW(run_ranks_as_threads(2,
                                    [](World& world) {
                                      float data = 1;
                                      if (world.rank() == 0) {
                                        world.everyone().all_reduce(&data, 1, DataType::float32);
                                      } else {
                                        world.everyone().all_reduce(&data, 1, DataType::float32, Reduction::maximum);
                                      }
                                    }),
               InternalError);
  EXPECT_THROW(run_ranks_as_threads(2,
                                    [](World& world) {
                                      std::vector<float> data(2);
                                      if (world.rank() == 0) {
                                        world.everyone().start_send(data.data(), 1, DataType::float32, 1).wait();
                                      } else {
                                        world.everyone().receive(data.data(), 2, DataType::float32, 0);
                                      }
                                    }),
               InternalError);
}

}  // namespace
}  // namespace copus
