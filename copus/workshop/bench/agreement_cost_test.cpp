#include "copus/workshop/bench/agreement_cost.h"

#include <gtest/gtest.h>

#include <vector>

#include "copus/performance/training_system.h"

namespace copus {
namespace {

constexpr MessageCosts costs{.latency_seconds = 25e-6, .seconds_per_message = 5e-6, .bytes_per_second = 1e9};

TEST(AgreementCost, WithAllOthersGrowsWithTheSquare) {
  const AgreementCost eight = cost_of_agreement_with_all(8, costs);
  EXPECT_EQ(eight.messages, 8 * 7);
  EXPECT_EQ(eight.bytes, 8 * 7 * (1832 + 8 * 48));
  EXPECT_EQ(eight.most_peers, 7);
  // When a rank has sent all seven messages, the first one has arrived, so the processor never waits for the others.
  EXPECT_NEAR(eight.seconds, 2 * 7 * 5e-6, 1e-12);
  // With three ranks, it waits for both messages.
  EXPECT_NEAR(cost_of_agreement_with_all(3, costs).seconds, 5e-6 + (1832 + 3 * 48) / 1e9 + 25e-6 + 2 * 5e-6, 1e-12);
  const AgreementCost many = cost_of_agreement_with_all(8192, costs);
  EXPECT_EQ(many.messages, int64_t{2} * 8192 * 8191);
  EXPECT_EQ(many.bytes, int64_t{2} * 8191 * (1832 + 8192 * 48));
  EXPECT_GT(many.seconds, 4 * 8191 * 5e-6);
}

TEST(AgreementCost, ByRoundsGrowsWithTheLogarithm) {
  const double bytes = copus_in_bf16().agreement_bytes;
  const double doubling = 2 * (5e-6 + 25e-6 + 5e-6) + (bytes + 8) / 1e9;
  std::vector<AgreementCost> all;
  for (const int64_t k : {3, 6, 9, 10, 13}) {
    const AgreementCost& cost = all.emplace_back(cost_of_agreement_by_rounds(int64_t{1} << k, costs));
    EXPECT_EQ(cost.ranks, int64_t{1} << k);
    EXPECT_EQ(cost.messages, 2 * k * cost.ranks);
    EXPECT_EQ(cost.bytes, k * cost.ranks * (static_cast<int64_t>(bytes) + 8));
    EXPECT_EQ(cost.most_peers, k);
    EXPECT_NEAR(cost.seconds, static_cast<double>(k) * doubling, 1e-9);
  }
  EXPECT_NEAR(seconds_by_doubling(all), doubling, 1e-9);
}

TEST(AgreementCost, TheSlopeIsThatOfTheLeastSquares) {
  const std::vector<AgreementCost> three = {
      {.ranks = 1, .seconds = 1}, {.ranks = 2, .seconds = 2}, {.ranks = 4, .seconds = 6}};
  EXPECT_DOUBLE_EQ(seconds_by_doubling(three), 2.5);
}

}  // namespace
}  // namespace copus
