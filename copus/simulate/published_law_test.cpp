#include "copus/simulate/published_law.h"

#include <gtest/gtest.h>

#include <cmath>

namespace copus {
namespace {

// In sequences of 2048, worked out by hand.
TEST(PublishedLaw, CriticalBatchesAreThoseOfTheirAuthors) {
  const auto sequences = [](PublishedLaw law, double tokens, double loss) {
    return published_critical_batch(law, tokens, loss) / 2048;
  };
  EXPECT_NEAR(sequences(PublishedLaw::kaplan, 1e9, 6), 20.2, 0.1);
  EXPECT_NEAR(sequences(PublishedLaw::kaplan, 1e9, 3), 548.1, 0.1);
  EXPECT_NEAR(sequences(PublishedLaw::kaplan, 1e12, 2), 3780, 5);
  EXPECT_NEAR(sequences(PublishedLaw::bergsma, 1e9, 3), 677.6, 0.5);
  EXPECT_NEAR(sequences(PublishedLaw::bergsma, 1e11, 2), 677.6 * std::pow(100, 0.462), 5);
  EXPECT_NEAR(sequences(PublishedLaw::olmo, 168e9, 2) / 2, 2048, 1e-6) << "sequences of 4096";
  EXPECT_NEAR(sequences(PublishedLaw::olmo, 503e9, 2) / 2, 4096, 1e-6);
  EXPECT_NEAR(sequences(PublishedLaw::olmo, 2e12, 2) / 2, 4096, 1e-6);
}

// Chinchilla: 70 B parameters, 1.4 T tokens.
TEST(PublishedLoss, IsThatOfHoffmann) {
  const PublishedLoss loss{7e10, 32000};
  EXPECT_NEAR(loss.at(1.4e12), 1.69 + 0.0835 + 0.1632, 2e-4);
  EXPECT_NEAR(loss.least(), 1.69 + 0.0835, 1e-4);
  EXPECT_DOUBLE_EQ(loss.at(100), std::log(32000)) << "no worse than guessing";
  for (const double tokens : {1e8, 1e10, 1e13}) EXPECT_NEAR(loss.tokens_to(loss.at(tokens)) / tokens, 1, 1e-9);
}

}  // namespace
}  // namespace copus
