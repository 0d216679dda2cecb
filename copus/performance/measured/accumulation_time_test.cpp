// Tests predictions for a job of which only step times are known.
#include "copus/performance/measured/accumulation_time.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>

namespace copus {
namespace {

Configuration in_batch(int64_t batch) { return {{.data_parallel = 2}, batch, 4}; }

Measurement measured(double seconds, double spread, std::mt19937_64& random) {
  std::vector<double> steps;
  std::normal_distribution<double> noise(0, spread);
  for (int i = 0; i < 10; ++i) steps.push_back(seconds * std::exp(noise(random)));
  return measurement_of(steps);
}

// The true step time: a + b x micro-batches.
struct Truth {
  double once, per_micro_batch;
  double seconds(int64_t batch) const {
    return once + per_micro_batch * static_cast<double>(in_batch(batch).num_microbatches());
  }
};

Knowledge first_measurement(const Truth& truth, int64_t batch, std::mt19937_64& random) {
  const Measurement measurement = measured(truth.seconds(batch), 0.02, random);
  const AccumulationTime guess = AccumulationTime::guess(in_batch(batch), measurement.median_seconds);
  return observe(Knowledge().under(accumulation_prior), in_batch(batch), guess.predict(in_batch(batch)), measurement);
}

double deviations(double value, double truth, double relative_deviation) {
  return std::abs(std::log(value / truth)) / relative_deviation;
}

TEST(AccumulationTime, TheGuessIsTheStepThatWasMeasured) {
  const AccumulationTime guess = AccumulationTime::guess(in_batch(32), 1.7);
  EXPECT_DOUBLE_EQ(guess.predict(in_batch(32)).total(), 1.7);
  EXPECT_DOUBLE_EQ(guess.predict(in_batch(64)).compute, 2 * guess.predict(in_batch(32)).compute);
  EXPECT_DOUBLE_EQ(guess.predict(in_batch(64)).data_communication, guess.predict(in_batch(8)).data_communication);
}

TEST(AccumulationTime, IsFoundInTheCellsThatItPredicted) {
  EXPECT_FALSE(AccumulationTime::of(Knowledge()));
  const AccumulationTime guess = AccumulationTime::guess(in_batch(32), 1.7);
  Knowledge known;
  for (const int64_t batch : {64, 32}) {
    known = observe(known, in_batch(batch), guess.predict(in_batch(batch)), {10, 1.0, 0.01});
  }
  EXPECT_DOUBLE_EQ(AccumulationTime::of(known)->predict(in_batch(8)).total(), guess.predict(in_batch(8)).total());
}

// A prediction from one batch is within two stated deviations of another batch's step time, for jobs that need between
// almost nothing and four micro-batches' time once per step.
TEST(AccumulationTime, OneBatchSaysHowLittleItTellsOfOthers) {
  std::mt19937_64 random(1);
  for (const Truth& truth : {Truth{0.03, 1}, Truth{0.25, 1}, Truth{0.6, 1}, Truth{1, 1}}) {
    for (const int64_t batch : {8, 32, 128}) {
      const Knowledge known = first_measurement(truth, batch, random);
      const StepTimeParts parts = AccumulationTime::of(known)->predict(in_batch(4 * batch));
      const Corrected expected = known.correct(in_batch(4 * batch), parts);
      EXPECT_LT(deviations(expected.seconds, truth.seconds(4 * batch), expected.relative_deviation), 2)
          << truth.once << " in " << batch << ": " << expected.seconds << " give or take "
          << expected.relative_deviation;
    }
  }
}

// The usual prior, which is for modelled jobs, would fail this test.
TEST(AccumulationTime, TwoBatchesTellWhatAStepHasOnce) {
  int within = 0, all = 0;
  for (uint64_t seed = 0; seed < 40; ++seed) {
    for (const double once : {0.05, 0.5, 2.0, 6.0}) {
      std::mt19937_64 random(seed);
      const Truth truth{once, 1};
      Knowledge known = first_measurement(truth, 8, random);
      const AccumulationTime guess = *AccumulationTime::of(known);
      known = observe(known, in_batch(64), guess.predict(in_batch(64)), measured(truth.seconds(64), 0.02, random));
      const StepTimeParts found = known.under_factors(guess.predict(in_batch(8)));
      within += deviations(found.data_communication, once, known.relative_deviation(Factor::data_links)) < 2;
      within += deviations(found.compute, 1, known.relative_deviation(Factor::compute)) < 2;
      all += 2;
      const Corrected expected = known.correct(in_batch(512), guess.predict(in_batch(512)));
      EXPECT_NEAR(expected.seconds / truth.seconds(512), 1, 0.1) << once << ", seed " << seed;
    }
  }
  EXPECT_GT(within, all * 9 / 10);
}

}  // namespace
}  // namespace copus
