#include "copus/performance/measured/stragglers.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>

#include "copus/base/numbers/quantile.h"

namespace copus {
namespace {

using Step = std::vector<PartSeconds>;

// Two stages of four ranks; the second has twice the work.
const std::vector<int64_t> stages = {0, 0, 0, 0, 1, 1, 1, 1};
constexpr PartSeconds usual = {1, 2, 0.5};

Step ordinary_step() { return {usual, usual, usual, usual, {2, 4, 1}, {2, 4, 1}, {2, 4, 1}, {2, 4, 1}}; }

Step step_with(int64_t rank, const PartSeconds& seconds) {
  Step step = ordinary_step();
  step[rank] = seconds;
  return step;
}

TEST(Stragglers, NobodyIsSlowWhereStagesDiffer) {
  EXPECT_TRUE(find_stragglers(std::vector<Step>(5, ordinary_step()), stages).empty());
}

TEST(Stragglers, NamesRankPartAndRatio) {
  const std::vector<Step> steps(5, step_with(2, {1, 3.75, 0.5}));
  EXPECT_EQ(find_stragglers(steps, stages), (std::vector<Straggler>{{2, StepPart::backward, 1.5}}));
  EXPECT_EQ(to_string(StepPart::backward), "backward");
}

TEST(Stragglers, TheSlowPartIsWhereTheTimeGoesNotTheLargest) {
  const std::vector<Step> steps(5, step_with(5, {2, 4.5, 4.5}));
  const auto stragglers = find_stragglers(steps, stages);
  ASSERT_EQ(stragglers.size(), 1);
  EXPECT_EQ(stragglers[0].rank, 5);
  EXPECT_EQ(stragglers[0].part, StepPart::optimizer);
}

TEST(Stragglers, ThreeOfTheLastFiveStepsAreNeeded) {
  const Step slow = step_with(1, {2, 4, 1});
  const Step fast = ordinary_step();
  EXPECT_TRUE(find_stragglers(std::vector{slow, slow, slow, slow, fast, fast, fast, slow, slow}, stages).empty());
  EXPECT_EQ(find_stragglers(std::vector{fast, fast, slow, fast, slow, fast, slow}, stages).size(), 1);
  EXPECT_TRUE(find_stragglers(std::vector{slow, slow}, stages).empty());
  EXPECT_TRUE(find_stragglers(std::vector<Step>{}, stages).empty());
}

TEST(Stragglers, TheRatioIsALimit) {
  EXPECT_TRUE(find_stragglers(std::vector<Step>(5, {{1, 0, 0}, {1.3, 0, 0}}), {0, 0}).empty());
  EXPECT_EQ(find_stragglers(std::vector<Step>(5, {{1, 0, 0}, {1.31, 0, 0}}), {0, 0}).size(), 1);
}

// The median excludes the rank itself: of two ranks, a median of both would hide the slow one.
TEST(Stragglers, ARankIsComparedWithTheOthers) {
  const auto stragglers = find_stragglers(std::vector<Step>(5, {{1, 2, 0}, {2, 2, 0}}), {0, 0});
  EXPECT_EQ(stragglers, (std::vector<Straggler>{{1, StepPart::forward, 4.0 / 3}}));
}

TEST(Stragglers, ARankWithoutPeersIsNotJudged) {
  EXPECT_TRUE(find_stragglers(std::vector<Step>(5, {{1, 2, 0}, {9, 9, 9}}), {0, 1}).empty());
}

// Follows the definition, rank by rank.
std::vector<Straggler> reference_stragglers(const std::vector<Step>& steps, const std::vector<int64_t>& all_stages) {
  const auto total = [](const PartSeconds& seconds) { return std::accumulate(seconds.begin(), seconds.end(), 0.0); };
  std::vector<Straggler> stragglers;
  for (size_t rank = 0; rank < all_stages.size(); ++rank) {
    std::vector<double> ratios;
    PartSeconds lost{};
    for (const Step& step : steps) {
      const auto median = [&](const auto& measure) {
        std::vector<double> values;
        for (size_t other = 0; other < step.size(); ++other) {
          if (other != rank && all_stages[other] == all_stages[rank]) values.push_back(measure(step[other]));
        }
        return quantile(values, 0.5);
      };
      if (std::count(all_stages.begin(), all_stages.end(), all_stages[rank]) == 1) continue;
      if (total(step[rank]) <= straggler_ratio * median(total)) continue;
      ratios.push_back(total(step[rank]) / median(total));
      for (size_t part = 0; part < lost.size(); ++part) {
        lost[part] += step[rank][part] - median([&](const PartSeconds& seconds) { return seconds[part]; });
      }
    }
    if (std::ssize(ratios) < straggler_steps) continue;
    const auto part = std::max_element(lost.begin(), lost.end()) - lost.begin();
    stragglers.push_back({static_cast<int64_t>(rank), static_cast<StepPart>(part), quantile(ratios, 0.5)});
  }
  return stragglers;
}

TEST(Stragglers, AreBitwiseThoseOfTheDefinition) {
  size_t found = 0;
  for (uint64_t seed = 0; seed < 200; ++seed) {
    std::mt19937_64 random(seed);
    const int64_t ranks = 1 + static_cast<int64_t>(random() % 24);
    std::vector<int64_t> random_stages;
    for (int64_t rank = 0; rank < ranks; ++rank) random_stages.push_back(static_cast<int64_t>(random() % 3));
    // Few different values, so that some are equal.
    std::vector<Step> steps(1 + random() % straggler_window, Step(ranks));
    for (Step& step : steps) {
      for (PartSeconds& seconds : step) {
        for (double& value : seconds) value = 0.1 * static_cast<double>(1 + random() % 7);
      }
    }
    const std::vector<Straggler> expected = reference_stragglers(steps, random_stages);
    EXPECT_EQ(find_stragglers(steps, random_stages), expected) << "seed " << seed;
    found += expected.size();
  }
  EXPECT_GT(found, 50);
}

TEST(Stragglers, TwoCanBeSlow) {
  Step step = step_with(3, {2, 4, 0.5});
  step[4] = {9, 4, 1};
  const auto stragglers = find_stragglers(std::vector<Step>(3, step), stages);
  ASSERT_EQ(stragglers.size(), 2);
  EXPECT_EQ(stragglers[0].rank, 3);
  EXPECT_EQ(stragglers[1].rank, 4);
}

}  // namespace
}  // namespace copus
