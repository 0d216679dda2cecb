// Tests that the modelled truth equals predictions except for the requested errors.
#include "copus/performance/modelled_truth.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "copus/performance/testing/described_job.h"

namespace copus {
namespace {

ModelledTruth truth_with(const LayoutErrors& errors, const ClusterDescription& cluster = described_cluster()) {
  return {described_model(), described_sequence_length, cluster, copus_in_bf16(), errors};
}

Configuration configuration(int64_t data, int64_t tensor, int64_t pipeline, int64_t micro_batch) {
  return {.strategy = {.data_parallel = data, .tensor_parallel = tensor, .pipeline_parallel = pipeline},
          .global_batch = 64,
          .micro_batch = micro_batch};
}

TEST(ModelledTruth, IsThePredictionWhereNoErrorIsAskedFor) {
  StepTimeModel model(described_model(), described_sequence_length, described_cluster(), copus_in_bf16());
  ModelledTruth truth = truth_with({.size = 0, .seed = 7});
  for (const Configuration& one : {configuration(8, 1, 1, 2), configuration(2, 2, 2, 1), configuration(2, 2, 2, 4)}) {
    EXPECT_EQ(truth.step_seconds(one), model.predict(one).total());
    EXPECT_EQ(truth.step_seconds(one), model.predict(one).total()) << "asked again";
  }
}

TEST(ModelledTruth, ErrorsMultiplyThePrediction) {
  const LayoutErrors errors{.size = 0.3, .seed = 7};
  ModelledTruth exact = truth_with({}), wrong = truth_with(errors), again = truth_with(errors);
  const Configuration first = configuration(8, 1, 1, 2), second = configuration(2, 2, 2, 1);
  EXPECT_EQ(wrong.step_seconds(first), exact.step_seconds(first) * errors.factor(first));
  EXPECT_NE(errors.factor(first), 1);
  EXPECT_EQ(again.step_seconds(second), wrong.step_seconds(second)) << "in whatever order they are asked";
  Configuration larger = first;
  larger.global_batch *= 2;
  larger.strategy.zero_stage = 1;
  EXPECT_EQ(errors.factor(larger), errors.factor(first)) << "d, t, p and the micro-batch alone count";
}

// Over many seeds, a factor's logarithm has the requested standard deviation, and two configurations' correlation is
// the fraction of d, t, p and b that they share.
TEST(ModelledTruth, ErrorsOfSimilarLayoutsAreAlike) {
  constexpr double size = 0.2;
  constexpr int64_t count = 4000;
  const Configuration base = configuration(8, 1, 1, 2);
  const std::vector<std::pair<Configuration, double>> others = {
      {base, 1}, {configuration(8, 1, 1, 4), 0.75}, {configuration(4, 1, 2, 2), 0.5}, {configuration(4, 2, 2, 4), 0}};
  for (const auto& [other, correlation] : others) {
    double sum = 0, product = 0;
    for (int64_t seed = 0; seed < count; ++seed) {
      const LayoutErrors errors{.size = size, .seed = static_cast<uint64_t>(seed)};
      const double of_base = std::log(errors.factor(base)), of_other = std::log(errors.factor(other));
      sum += of_other;
      product += of_base * of_other;
    }
    EXPECT_NEAR(sum / count, 0, 4 * size / std::sqrt(count));
    EXPECT_NEAR(product / count / (size * size), correlation, 4 * std::sqrt(2.0 / count)) << to_string(other);
  }
}

TEST(ModelledTruth, ARelayoutTakesAsLongAsItsPlan) {
  ModelledTruth truth = truth_with({.size = 0.5, .seed = 7});
  const ParallelStrategy from{.data_parallel = 2, .tensor_parallel = 4, .zero_stage = 1}, to{.data_parallel = 8};
  EXPECT_GT(truth.relayout_seconds(from, to), 0);
  EXPECT_EQ(truth.relayout_seconds(from, to), relayout_seconds(described_relayout(from, to), described_cluster()));
  EXPECT_EQ(truth.relayout_seconds(from, from), 0);
}

TEST(ModelledTruth, OfManyRanksItIsThatOfReceivingTheState) {
  ModelledTruth truth = truth_with({});
  const ParallelStrategy from{.data_parallel = 4096}, to{.data_parallel = 2048, .tensor_parallel = 2};
  const double bytes = 12 * static_cast<double>(count_parameters(described_model())) / 2;
  const Link link = described_cluster().between_nodes;
  // Both tensor-parallel ranks hold the norms.
  EXPECT_NEAR(truth.relayout_seconds(from, to), link.latency_seconds + bytes / link.bytes_per_second,
              1e-3 * bytes / link.bytes_per_second);
}

TEST(ModelledTruth, KnowsTheMemoryOfItsDevices) {
  ClusterDescription small = described_cluster();
  small.device.memory_bytes = 10e9;
  EXPECT_EQ(truth_with({}).why_too_large(configuration(8, 1, 1, 1)), std::nullopt);
  EXPECT_NE(truth_with({}, small).why_too_large(configuration(8, 1, 1, 1)), std::nullopt);
}

}  // namespace
}  // namespace copus
