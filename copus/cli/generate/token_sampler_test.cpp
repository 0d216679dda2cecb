#include "copus/cli/generate/token_sampler.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

namespace copus {
namespace {

const std::vector<float> logits = {0.0F, 2.0F, 1.0F, 2.0F, -1.0F};

std::vector<double> frequencies(const Sampling& sampling, int draws) {
  std::vector<double> seen(logits.size());
  for (int i = 0; i < draws; ++i) seen[sample_token(logits, sampling, i)] += 1.0 / draws;
  return seen;
}

TEST(TokenSampler, TemperatureZeroTakesTheFirstOfTheLikeliest) {
  EXPECT_EQ(sample_token(logits, {.temperature = 0, .top_k = 0, .seed = 5}, 9), 1);
}

TEST(TokenSampler, DrawsFollowTheSoftmax) {
  const double temperature = 0.7;
  double sum = 0;
  for (const float logit : logits) sum += std::exp(double{logit} / temperature);
  const auto seen = frequencies({.temperature = temperature, .top_k = 0, .seed = 3}, 20000);
  for (size_t token = 0; token < logits.size(); ++token) {
    EXPECT_NEAR(seen[token], std::exp(double{logits[token]} / temperature) / sum, 0.02);
  }
}

TEST(TokenSampler, TopKLeavesOutTheRest) {
  const auto seen = frequencies({.temperature = 5, .top_k = 3, .seed = 3}, 1000);
  EXPECT_EQ(seen[0] + seen[4], 0);
  EXPECT_GT(seen[2], 0);
}

TEST(TokenSampler, IsAFunctionOfSeedAndPosition) {
  const Sampling one{.temperature = 1, .top_k = 0, .seed = 1};
  const Sampling two{.temperature = 1, .top_k = 0, .seed = 2};
  int equal = 0;
  for (uint64_t position = 0; position < 100; ++position) {
    EXPECT_EQ(sample_token(logits, one, position), sample_token(logits, one, position));
    equal += sample_token(logits, one, position) == sample_token(logits, two, position);
  }
  EXPECT_LT(equal, 70);
}

}  // namespace
}  // namespace copus
