#include "copus/statistics/busiest_share.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

namespace copus {
namespace {

TEST(BusiestShare, IsThatOfRanksThatDrawTheirItems) {
  std::mt19937_64 random(3);
  std::gamma_distribution<double> work(4, 0.25);  // mean 1, deviation 0.5
  constexpr int steps = 4000;
  for (const auto& [ranks, items] : {std::pair{2, 8}, {8, 16}, {64, 16}}) {
    double sum = 0;
    for (int step = 0; step < steps; ++step) {
      double busiest = 0;
      for (int rank = 0; rank < ranks; ++rank) {
        double mine = 0;
        for (int item = 0; item < items; ++item) mine += work(random);
        busiest = std::max(busiest, mine / items);
      }
      sum += busiest;
    }
    const double excess = sum / steps - 1;
    EXPECT_NEAR(busiest_share(0.5, ranks, items) - 1, excess, 0.12 * excess) << ranks << " ranks, " << items;
  }
}

TEST(BusiestShare, OneRankOrEqualWorkIsEven) {
  EXPECT_EQ(busiest_share(0.5, 1, 3), 1);
  EXPECT_EQ(busiest_share(0, 16, 3), 1);
}

}  // namespace
}  // namespace copus
