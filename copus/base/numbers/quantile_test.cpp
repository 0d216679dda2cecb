#include "copus/base/numbers/quantile.h"

#include <gtest/gtest.h>

namespace copus {
namespace {

TEST(Quantile, InterpolatesBetweenValuesInAnyOrder) {
  const std::vector<double> values{4, 1, 3, 2, 10};
  EXPECT_EQ(quantile(values, 0), 1);
  EXPECT_EQ(quantile(values, 1), 10);
  EXPECT_DOUBLE_EQ(quantile(values, 0.125), 1.5);
  EXPECT_EQ(quantile({7}, 0.3), 7);
}

TEST(Quantile, Quartiles) {
  const Quartiles found = quartiles({4, 1, 3, 2, 10});
  EXPECT_EQ(found.lower, 2);
  EXPECT_EQ(found.median, 3);
  EXPECT_EQ(found.upper, 4);
}

}  // namespace
}  // namespace copus
