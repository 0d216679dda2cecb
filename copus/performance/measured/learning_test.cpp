#include "copus/performance/measured/learning.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>

#include "copus/base/error.h"
#include "copus/base/numbers/quantile.h"

namespace copus {
namespace {

// Different numbers give different layouts.
Configuration configuration_number(int64_t number, int64_t batches = 1) {
  Configuration configuration;
  configuration.strategy.data_parallel = number + 1;
  configuration.global_batch = (number + 1) * batches;
  return configuration;
}

StepTimeParts seconds_of_compute(double seconds) {
  StepTimeParts parts;
  parts.compute = seconds;
  return parts;
}

// A machine with known factors and cell residuals, and predictions without them for 30 different configurations.
class Machine {
 public:
  static constexpr int64_t num_cells = 30;
  static constexpr double residual_deviation = 0.05;
  static constexpr double spread = 0.03;

  explicit Machine(uint64_t seed) : random_(seed) {
    std::uniform_real_distribution<double> uniform;
    for (double* factor : {&compute, &tensor_links, &data_links}) *factor = std::exp(0.4 * normal());
    bubble = compute * std::exp(0.2 * normal());
    for (int64_t i = 0; i < num_cells; ++i) {
      StepTimeParts& cell = parts.emplace_back();
      cell.compute = 0.5 + uniform(random_);
      cell.tensor_communication = i % 3 == 0 ? 0 : 0.8 * uniform(random_);
      cell.data_communication = i % 4 == 0 ? 0 : 0.8 * uniform(random_);
      cell.bubble = i % 2 == 0 ? 0 : 0.5 * uniform(random_);
      cell.optimizer = 0.05;
      residual.push_back(std::exp(residual_deviation * normal()));
    }
  }

  double without_residual(int64_t i) const {
    const StepTimeParts& cell = parts[i];
    return compute * (cell.compute + cell.optimizer) + tensor_links * cell.tensor_communication +
           data_links * cell.data_communication + bubble * cell.bubble;
  }
  double truth(int64_t i) const { return without_residual(i) * residual[i]; }

  Measurement measure(int64_t i, int64_t steps) {
    std::vector<double> seconds;
    for (int64_t step = 0; step < steps; ++step) seconds.push_back(truth(i) * std::exp(spread * normal()));
    return measurement_of(seconds);
  }

  // Learns from 20 steps of each of the first `cells` configurations.
  Knowledge learn_from(int64_t cells) {
    Knowledge knowledge;
    for (int64_t i = 0; i < cells; ++i) {
      knowledge = observe(knowledge, configuration_number(i), parts[i], measure(i, 20));
    }
    return knowledge;
  }

  double compute, tensor_links, data_links, bubble;
  std::vector<StepTimeParts> parts;
  std::vector<double> residual;

 private:
  double normal() { return normal_(random_); }
  std::mt19937_64 random_;
  std::normal_distribution<double> normal_;
};

double median_of(const std::vector<double>& values) { return quantile(values, 0.5); }

TEST(Learning, BeforeAnythingIsMeasuredThePredictionStandsWithADoubt) {
  StepTimeParts parts{.compute = 1, .tensor_communication = 2, .bubble = 3, .data_communication = 4, .optimizer = 5};
  const Corrected corrected = Knowledge().correct({}, parts);
  EXPECT_DOUBLE_EQ(corrected.seconds, parts.total());
  EXPECT_GT(corrected.relative_deviation, 0.2);
  EXPECT_LT(corrected.relative_deviation, 0.5);
  EXPECT_EQ(Knowledge().measured_steps({}), 0);
}

TEST(Learning, AMeasuredCellConvergesToItsMedian) {
  const Configuration configuration = configuration_number(1);
  const StepTimeParts parts = seconds_of_compute(1);
  for (const double truth : {0.05, 0.9, 1.3, 20.0}) {
    Knowledge knowledge;
    for (int64_t i = 0; i < 20; ++i) knowledge = observe(knowledge, configuration, parts, {10, truth, 0.02});
    const Corrected corrected = knowledge.correct(configuration, parts);
    EXPECT_NEAR(corrected.seconds / truth, 1, 0.005) << truth;
    EXPECT_LT(corrected.relative_deviation, 0.015);
    EXPECT_EQ(knowledge.measured_steps(configuration), 200);
  }
}

TEST(Learning, ACellThatTheFactorsDoNotExplainConvergesToo) {
  Knowledge knowledge;
  for (int64_t i = 0; i < 10; ++i) {
    knowledge = observe(knowledge, configuration_number(i), seconds_of_compute(1), {20, i == 0 ? 3.0 : 1.0, 0.02});
  }
  EXPECT_NEAR(knowledge.correct(configuration_number(0), seconds_of_compute(1)).seconds, 3, 0.03);
  // The outlier has not spoiled the other cells: least squares would give 1.12.
  EXPECT_NEAR(knowledge.correct(configuration_number(10), seconds_of_compute(1)).seconds, 1, 0.03);
}

TEST(Learning, EachPartHasItsFactor) {
  Machine machine(1);
  std::fill(machine.residual.begin(), machine.residual.end(), 1);
  const Knowledge knowledge = machine.learn_from(Machine::num_cells);
  EXPECT_NEAR(knowledge.factor(Factor::compute) / machine.compute, 1, 0.03);
  EXPECT_NEAR(knowledge.factor(Factor::tensor_links) / machine.tensor_links, 1, 0.1);
  EXPECT_NEAR(knowledge.factor(Factor::data_links) / machine.data_links, 1, 0.1);
  EXPECT_NEAR(knowledge.factor(Factor::bubble) / machine.bubble, 1, 0.1);
  for (const Factor factor : {Factor::compute, Factor::tensor_links, Factor::data_links, Factor::bubble}) {
    EXPECT_LT(knowledge.relative_deviation(factor), 0.15);
  }
}

// Idle time is mostly waiting for the slowest stage. If devices compute three times as long as predicted, the bubble is
// expected to grow too.
TEST(Learning, TheBubbleFollowsComputing) {
  const Knowledge knowledge = observe({}, {}, seconds_of_compute(1), {100, 3, 0.01});
  EXPECT_NEAR(knowledge.factor(Factor::compute), 3, 0.2);
  EXPECT_DOUBLE_EQ(knowledge.factor(Factor::bubble), knowledge.factor(Factor::compute));
  EXPECT_DOUBLE_EQ(knowledge.factor(Factor::data_links), 1);
}

// After measuring 10 of 30 cells, predictions of the other 20 are off by little more than their own residuals, which
// nothing can predict.
TEST(Learning, SharedFactorsCarryOverToCellsThatWereNotMeasured) {
  std::vector<double> before, after, residual;
  for (uint64_t seed = 0; seed < 50; ++seed) {
    Machine machine(seed);
    const Knowledge knowledge = machine.learn_from(10);
    std::vector<double> errors_before, errors_after, residuals;
    for (int64_t i = 10; i < Machine::num_cells; ++i) {
      const auto error = [&](double seconds) { return std::abs(seconds / machine.truth(i) - 1); };
      errors_before.push_back(error(machine.parts[i].total()));
      errors_after.push_back(error(knowledge.correct(configuration_number(i), machine.parts[i]).seconds));
      residuals.push_back(error(machine.without_residual(i)));
    }
    before.push_back(median_of(errors_before));
    after.push_back(median_of(errors_after));
    residual.push_back(median_of(residuals));
  }
  EXPECT_GT(median_of(before), 0.15);
  EXPECT_LT(median_of(after), 1.3 * median_of(residual));
  EXPECT_LT(quantile(after, 0.9), 0.08);
}

// Counts over many machines how often the truth is within one and two deviations, with 10 of 30 cells measured.
TEST(Learning, DeviationsAreHonest) {
  for (const bool measured : {false, true}) {
    int64_t within_one = 0, within_two = 0, all = 0;
    for (uint64_t seed = 100; seed < 200; ++seed) {
      Machine machine(seed);
      const Knowledge knowledge = machine.learn_from(10);
      for (int64_t i = measured ? 0 : 10; i < (measured ? 10 : Machine::num_cells); ++i) {
        const Corrected corrected = knowledge.correct(configuration_number(i), machine.parts[i]);
        const double distance = std::abs(std::log(machine.truth(i) / corrected.seconds)) / corrected.relative_deviation;
        within_one += distance < 1;
        within_two += distance < 2;
        ++all;
      }
    }
    const double one = static_cast<double>(within_one) / static_cast<double>(all);
    const double two = static_cast<double>(within_two) / static_cast<double>(all);
    // Residuals here are smaller than assumed, so intervals are a little too wide.
    EXPECT_GT(one, 0.68) << measured;
    EXPECT_LT(one, 0.90) << measured;
    EXPECT_GT(two, 0.95) << measured;
  }
}

TEST(Learning, TheOrderDoesNotMatter) {
  Machine machine(2);
  struct Observation {
    int64_t cell;
    Measurement measurement;
  };
  std::vector<Observation> observations;
  for (int64_t i = 0; i < 12; ++i) {
    for (int64_t repeat = 0; repeat < 1 + i % 3; ++repeat) observations.push_back({i, machine.measure(i, 5)});
  }
  const auto learn = [&] {
    Knowledge knowledge;
    for (const Observation& each : observations) {
      knowledge = observe(knowledge, configuration_number(each.cell), machine.parts[each.cell], each.measurement);
    }
    return knowledge;
  };
  const Knowledge forwards = learn();
  std::reverse(observations.begin(), observations.end());
  const Knowledge backwards = learn();
  for (int64_t i = 0; i < Machine::num_cells; ++i) {
    const Corrected one = forwards.correct(configuration_number(i), machine.parts[i]);
    const Corrected other = backwards.correct(configuration_number(i), machine.parts[i]);
    // Sums are in another order, and Newton's method stops at 1e-12.
    EXPECT_NEAR(one.seconds / other.seconds, 1, 1e-11);
    EXPECT_NEAR(one.relative_deviation / other.relative_deviation, 1, 1e-11);
  }
}

// All batches of a layout run the same micro-batches, so its deviation in one batch predicts that in others. It says
// little about other layouts.
TEST(Learning, TheBatchesOfALayoutShareItsDeviation) {
  Knowledge knowledge;
  for (int64_t i = 1; i < 10; ++i) {
    knowledge = observe(knowledge, configuration_number(i), seconds_of_compute(1), {20, 1, 0.02});
  }
  knowledge = observe(knowledge, configuration_number(0), seconds_of_compute(1), {20, 1.1, 0.02});
  const Corrected doubled = knowledge.correct(configuration_number(0, 2), seconds_of_compute(2));
  EXPECT_NEAR(doubled.seconds / 2, 1.1, 0.04);
  EXPECT_LT(doubled.relative_deviation, 0.05);
  EXPECT_TRUE(knowledge.knows_layout(configuration_number(0, 2)));
  const Corrected other = knowledge.correct(configuration_number(10), seconds_of_compute(1));
  EXPECT_NEAR(other.seconds, 1, 0.03);
  EXPECT_GT(other.relative_deviation, doubled.relative_deviation);
  EXPECT_FALSE(knowledge.knows_layout(configuration_number(10)));
}

// One layout in twenty is many times slower than predicted, for a reason that others do not share. A factor of seven is
// attributed to the layout, a factor of three to the machine (TheBubbleFollowsComputing).
TEST(Learning, ALayoutThatIsStalledDoesNotSpeakForTheMachine) {
  const Knowledge knowledge = observe({}, configuration_number(0), seconds_of_compute(1), {20, 7, 0.02});
  EXPECT_NEAR(knowledge.correct(configuration_number(0), seconds_of_compute(1)).seconds, 7, 0.1);
  EXPECT_NEAR(knowledge.correct(configuration_number(0, 2), seconds_of_compute(1)).seconds, 7, 0.3);
  EXPECT_LT(knowledge.correct(configuration_number(1), seconds_of_compute(1)).seconds, 2);
}

// A cell's residual is one draw, however often the cell is measured.
TEST(Learning, RepeatingOneCellSaysLittleAboutTheOthers) {
  const StepTimeParts parts = seconds_of_compute(1);
  Knowledge knowledge = observe({}, configuration_number(0), parts, {10, 1.2, 0.03});
  const double once = knowledge.relative_deviation(Factor::compute);
  for (int64_t i = 0; i < 60; ++i) knowledge = observe(knowledge, configuration_number(0), parts, {10, 1.2, 0.03});
  EXPECT_GT(knowledge.relative_deviation(Factor::compute), 0.05);
  EXPECT_GT(knowledge.relative_deviation(Factor::compute), 0.9 * once);
  EXPECT_GT(knowledge.correct(configuration_number(1), parts).relative_deviation, 0.08);
  // Measurements of other cells tell more.
  for (int64_t i = 1; i < 10; ++i) knowledge = observe(knowledge, configuration_number(i), parts, {10, 1.2, 0.03});
  EXPECT_LT(knowledge.relative_deviation(Factor::compute), 0.5 * once);
}

TEST(Learning, MoreMeasurementsMakeSurer) {
  Machine machine(3);
  Knowledge knowledge;
  std::vector<double> before(Machine::num_cells, 1);
  for (int64_t i = 0; i < Machine::num_cells; ++i) {
    knowledge = observe(knowledge, configuration_number(i), machine.parts[i], {20, machine.truth(i), 0.03});
    for (int64_t other = 0; other < Machine::num_cells; ++other) {
      const double now = knowledge.correct(configuration_number(other), machine.parts[other]).relative_deviation;
      EXPECT_LT(now, 1.05 * before[other]);  // may grow a little, since the factors' fractions change
      before[other] = now;
    }
  }
  EXPECT_LT(*std::max_element(before.begin(), before.end()), 0.015);  // all cells are measured
}

TEST(Learning, OneSlowStepOrMeasurementDoesNotCount) {
  const Measurement measurement = measurement_of({1, 1.01, 0.99, 1, 50, 1.02, 0.98, 1, 1});
  EXPECT_EQ(measurement.steps, 9);
  EXPECT_DOUBLE_EQ(measurement.median_seconds, 1);
  EXPECT_LT(measurement.relative_spread, 0.03);

  const StepTimeParts parts = seconds_of_compute(1);
  Knowledge knowledge;
  for (int64_t i = 0; i < 9; ++i) knowledge = observe(knowledge, {}, parts, {10, i == 4 ? 50.0 : 1.0, 0.01});
  EXPECT_NEAR(knowledge.correct({}, parts).seconds, 1, 0.001);
}

TEST(Learning, TheSpreadIsAStandardDeviation) {
  std::mt19937_64 random(4);
  std::normal_distribution<double> normal;
  std::vector<double> seconds;
  for (int64_t i = 0; i < 4000; ++i) seconds.push_back(2 * std::exp(0.1 * normal(random)));
  EXPECT_NEAR(measurement_of(seconds).relative_spread, 0.1, 0.01);
  EXPECT_NEAR(measurement_of(seconds).median_seconds, 2, 0.02);
}

TEST(Learning, MeasurementsCountWithTheirSteps) {
  MeasuredCell cell{seconds_of_compute(1), {{30, 2, 0}, {10, 1, 0}, {10, 5, 0}}};
  EXPECT_EQ(cell.steps(), 50);
  EXPECT_DOUBLE_EQ(cell.seconds(), 2);
  cell.measurements = {{10, 4, 0}, {10, 1, 0}};
  EXPECT_DOUBLE_EQ(cell.seconds(), 2.5);
}

// A single step has no spread, which does not prove that there is none.
TEST(Learning, FewStepsAreNotTrusted) {
  const MeasuredCell one{seconds_of_compute(1), {{1, 1, 0}}}, many{seconds_of_compute(1), {{1000, 1, 0}}};
  EXPECT_GT(one.relative_noise(), 0.05);
  EXPECT_LT(many.relative_noise(), 0.0101);
  EXPECT_GE(many.relative_noise(), 0.01);  // at least the machine's drift
  const MeasuredCell noisy{seconds_of_compute(1), {{1, 1, 0}, {10, 1, 0.3}}};
  EXPECT_NEAR(noisy.relative_noise(), 1.2533 * 0.3 * std::sqrt(9.0 / 13 / 11), 0.01);
}

TEST(Learning, OldMeasurementsAreForgotten) {
  const StepTimeParts parts = seconds_of_compute(1);
  Knowledge knowledge;
  for (int64_t i = 0; i < 100; ++i) knowledge = observe(knowledge, {}, parts, {10, 1, 0.01});
  for (int64_t i = 0; i < max_measurements; ++i) knowledge = observe(knowledge, {}, parts, {10, 1.5, 0.01});
  EXPECT_EQ(knowledge.cells().at({}).measurements.size(), max_measurements);
  EXPECT_NEAR(knowledge.correct({}, parts).seconds, 1.5, 0.005);
}

TEST(Learning, KnowledgeIsWhatItsCellsSay) {
  Machine machine(5);
  const Knowledge knowledge = machine.learn_from(8);
  EXPECT_EQ(Knowledge(knowledge.cells()), knowledge);
  EXPECT_NE(Knowledge(), knowledge);
}

TEST(Learning, NothingComesOfNothing) {
  EXPECT_THROW(Knowledge().correct({}, {}), InternalError);
  EXPECT_THROW(observe({}, {}, {}, {10, 1, 0.1}), InternalError);
  EXPECT_THROW(observe({}, {}, seconds_of_compute(1), {10, 0, 0.1}), InternalError);
  EXPECT_THROW(measurement_of({}), InternalError);
}

}  // namespace
}  // namespace copus
