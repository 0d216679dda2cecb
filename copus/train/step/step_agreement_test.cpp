#include "copus/train/step/step_agreement.h"

#include <gtest/gtest.h>

#include <bit>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "copus/comm/testing/rank_threads.h"
#include "copus/performance/training_system.h"

namespace copus {
namespace {

StepAgreement agree(const StepReport& report, Communicator& everyone) {
  StepAgreement agreement = agree_on_numbers(report, everyone);
  agree_on_time(agreement, everyone);
  return agreement;
}

const std::vector<int64_t> sizes = {1, 2, 3, 5, 8};

// Counts the bytes sent through a group.
class CountingCommunicator final : public WrappedCommunicator {
 public:
  using WrappedCommunicator::WrappedCommunicator;
  int64_t bytes() const { return bytes_; }

 private:
  void do_run(const Operation& operation) override {
    bytes_ += operation.bytes();
    group().run(operation);
  }
  int64_t bytes_ = 0;
};

// Terms whose sum is wrong in any order of rounded additions.
ExactSum sum_of_rank(int64_t rank) {
  ExactSum sum;
  for (const double term : {1e300, 1.0, -1e300, 1e-300}) sum.add(term * static_cast<double>(rank + 1));
  return sum;
}

TEST(StepAgreement, AllRanksHaveTheSumsTheLatestTimeAndWhatRankZeroSays) {
  const SwitchIntent intent{.configuration = {.strategy = {.data_parallel = 4}, .global_batch = 32, .micro_batch = 2},
                            .commit_after_step = 12,
                            .rate_factor = 1.5,
                            .inputs_hash = 0xFEDCBA9876543210};
  for (const int64_t size : sizes) {
    run_ranks_as_threads(size, [&](World& world) {
      const int64_t rank = world.rank();
      StepReport report;
      report.squared_norm = report.small_squared_norms = report.loss = sum_of_rank(rank);
      report.small_squared_norms.add(1);
      report.loss.add(2);
      report.stop = rank == 0 ? StopReason::pause : StopReason::time_limit;
      report.begin = rank == 0 ? -3.25 : 1e9;
      report.now = rank == size / 2 ? 7.5 : -1;  // virtual clocks may differ
      report.rate_factor = rank == 0 ? 0.75 : 9;
      report.intent = intent;
      if (rank != 0) report.intent->commit_after_step = 99;
      const StepAgreement agreed = agree(report, world.everyone());
      const auto terms = static_cast<double>(size * (size + 1) / 2);
      ExactSum sum;
      for (int64_t other = 0; other < size; ++other) sum.add(sum_of_rank(other));
      EXPECT_EQ(agreed.squared_norm, sum.value());
      EXPECT_EQ(agreed.small_squared_norms, terms + static_cast<double>(size));
      EXPECT_EQ(agreed.loss, terms + 2 * static_cast<double>(size));
      EXPECT_EQ(agreed.stop, StopReason::pause);
      EXPECT_EQ(agreed.now, 7.5);
      EXPECT_EQ(agreed.seconds, 7.5 + 3.25);
      EXPECT_EQ(agreed.seconds_of_rank_0, (size == 1 ? 7.5 : -1) + 3.25);
      EXPECT_EQ(agreed.rate_factor, 0.75);
      ASSERT_TRUE(agreed.intent);
      EXPECT_EQ(agreed.intent->configuration, intent.configuration);
      EXPECT_EQ(agreed.intent->commit_after_step, 12);
      EXPECT_EQ(agreed.intent->rate_factor, 1.5);
      EXPECT_EQ(agreed.intent->inputs_hash, 0xFEDCBA9876543210);

      report.intent.reset();
      report.rate_factor.reset();
      const StepAgreement silent = agree(report, world.everyone());
      EXPECT_FALSE(silent.intent || silent.rate_factor);
    });
  }
}

TEST(StepAgreement, AnyRankThatWasToldToStopStopsAll) {
  const auto agreed = [](StopReason mine, Communicator& everyone) {
    StepReport report;
    report.stop = mine;
    const StopReason reason = agree(report, everyone).stop;
    EXPECT_EQ(agree_on_stop(mine, everyone), reason);
    return reason;
  };
  for (const int64_t size : sizes) {
    run_ranks_as_threads(size, [&](World& world) {
      Communicator& everyone = world.everyone();
      for (const StopReason told : {StopReason::interrupt, StopReason::terminate}) {
        for (int64_t rank = 0; rank < size; ++rank) {
          EXPECT_EQ(agreed(world.rank() == rank ? told : StopReason::none, everyone), told);
          EXPECT_EQ(agreed(world.rank() <= rank ? told : StopReason::pause, everyone), told);
        }
      }
      const StopReason each = world.rank() % 2 == 0 ? StopReason::terminate : StopReason::interrupt;
      EXPECT_EQ(agreed(each, everyone), size == 1 ? StopReason::terminate : StopReason::interrupt);
      // Time limits and pauses of other ranks are ignored.
      EXPECT_EQ(agreed(world.rank() > 0 ? StopReason::time_limit : StopReason::none, everyone), StopReason::none);
    });
  }
}

TEST(StepAgreement, ItsSizeIsThatOfThePerformanceModelForAnyNumberOfRanks) {
  for (const int64_t size : sizes) {
    run_ranks_as_threads(size, [&](World& world) {
      CountingCommunicator everyone(world.everyone());
      agree({}, everyone);
      EXPECT_EQ(static_cast<double>(everyone.bytes()), copus_in_fp32().agreement_bytes + sizeof(double));
    });
  }
}

TEST(StepAgreement, TheFirstObstacleIsEveryRanks) {
  for (const int64_t size : sizes) {
    run_ranks_as_threads(size, [&](World& world) {
      const int64_t rank = world.rank();
      Communicator& everyone = world.everyone();
      EXPECT_EQ(agree_on_obstacle({}, 0x8000000000000001, everyone), std::nullopt);
      for (int64_t first = 0; first < size; ++first) {
        std::optional<Obstacle> mine;
        if (rank >= first) mine = Obstacle{std::string(1000 + rank, 'x'), rank == first};
        const Obstacle expected{"rank " + std::to_string(first) + ": " + std::string(1000 + first, 'x'), true};
        EXPECT_EQ(agree_on_obstacle(mine, 5, everyone), expected);
      }
    });
  }
}

TEST(StepAgreement, AnotherHashThanRankZerosIsAnObstacle) {
  for (const int64_t size : sizes) {
    run_ranks_as_threads(size, [&](World& world) {
      for (int64_t first = 1; first < size; ++first) {
        for (const uint64_t other : {uint64_t{0}, uint64_t{6}, ~uint64_t{0}}) {
          const auto obstacle = agree_on_obstacle({}, world.rank() < first ? 5 : other, world.everyone());
          ASSERT_TRUE(obstacle);
          EXPECT_EQ(obstacle->reason, "rank " + std::to_string(first) + ": its plan is not that of rank 0");
        }
      }
    });
  }
}

// Records which ranks exchange messages.
class NotingCommunicator final : public WrappedCommunicator {
 public:
  NotingCommunicator(Communicator& group, std::set<int64_t>& peers) : WrappedCommunicator(group), peers_(peers) {}

 private:
  void do_run(const Operation& operation) override {
    peers_.insert(operation.peer);
    group().run(operation);
  }
  std::set<int64_t>& peers_;
};

class PeerNotingWorld final : public WrappedWorld {
 public:
  PeerNotingWorld(World& world, std::set<int64_t>& peers) : WrappedWorld(world), peers_(peers) {}

 private:
  std::unique_ptr<Communicator> make_group(const std::vector<int64_t>& ranks, int64_t /*member*/) override {
    return std::make_unique<NotingCommunicator>(inner().group(ranks), peers_);
  }
  std::set<int64_t>& peers_;
};

TEST(StepAgreement, TextsOfAllLengthsAreGatheredFromFewPeers) {
  for (const int64_t size : {1, 2, 3, 5, 6, 8, 13}) {
    run_ranks_as_threads(size, [&](World& inner) {
      std::set<int64_t> peers;
      PeerNotingWorld world(inner, peers);
      const auto text_of = [](int64_t rank) {
        return std::string(rank % 3 == 2 ? 0 : 1000 * rank, static_cast<char>('a' + rank));
      };
      const std::vector<std::string> all = gather_bytes(text_of(world.rank()), world);
      EXPECT_LE(std::ssize(peers), std::bit_width(static_cast<uint64_t>(size - 1))) << "rank " << world.rank();
      std::vector<std::string> expected;
      for (int64_t rank = 0; world.rank() == 0 && rank < size; ++rank) expected.push_back(text_of(rank));
      EXPECT_EQ(all, expected) << "rank " << world.rank();
    });
  }
}

}  // namespace
}  // namespace copus
