#include "copus/statistics/student_t.h"

#include <gtest/gtest.h>

#include <limits>

#include "copus/base/error.h"

namespace copus {
namespace {

// Expected values with five decimals are from tables. The quantiles for 1 and 2 degrees of freedom have closed forms;
// the one for 2.5 is from SciPy, the last two from mpmath.
TEST(StudentT, IsWhatTablesSay) {
  struct Row {
    double probability, degrees, quantile;
  };
  constexpr double infinite = std::numeric_limits<double>::infinity();
  for (const auto& [probability, degrees, quantile] : std::initializer_list<Row>{{0.975, 1, 12.70620},
                                                                                 {0.975, 2, 4.30265},
                                                                                 {0.975, 2.5, 3.57465},
                                                                                 {0.975, 3, 3.18245},
                                                                                 {0.975, 5, 2.57058},
                                                                                 {0.975, 10, 2.22814},
                                                                                 {0.975, 30, 2.04227},
                                                                                 {0.975, 100, 1.98397},
                                                                                 {0.975, infinite, 1.95996},
                                                                                 {0.75, 4, 0.74070},
                                                                                 {0.95, 1, 6.31375},
                                                                                 {0.95, 10, 1.81246},
                                                                                 {0.995, 5, 4.03214},
                                                                                 {0.995, infinite, 2.57583},
                                                                                 {0.995, 1.5, 17.82031},
                                                                                 {0.99999, 7.3, 9.68800}}) {
    EXPECT_NEAR(student_t_quantile(probability, degrees), quantile, 6e-6) << probability << ", " << degrees;
  }
}

TEST(StudentT, TakesUpperHalfAndAtLeastOneDegree) {
  EXPECT_THROW(student_t_quantile(0.5, 10), InternalError);
  EXPECT_THROW(student_t_quantile(1, 10), InternalError);
  EXPECT_THROW(student_t_quantile(0.975, 0.9), InternalError);
}

}  // namespace
}  // namespace copus
