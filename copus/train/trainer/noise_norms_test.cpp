// Compares the norms that steps measure in every layout with the oracle's, and the noise scale of a finite data set
// with the exact one.
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <limits>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "copus/train/testing/noise_scale_test_support.h"

namespace copus {
namespace {

using namespace layouts;
using namespace noise_tests;

// ---- norms, layout by layout ----------------------------------------------------------------------------------------

TEST_F(NoiseScaleTest, NormsWithDataParallelism) {
  for (const std::vector<Change>& base : {std::vector<Change>{tied}, {biases}}) {
    expect_norms(base, {{ranks(1, 1, 1), micro_batch(1)},
                        {ranks(1, 1, 1), micro_batch(2), recompute(Recompute::full)},
                        {ranks(1, 1, 1), micro_batch(4), zb_h1},
                        {ranks(2, 1, 1), micro_batch(1), zero_1},
                        {ranks(2, 1, 1), micro_batch(2), gpipe},
                        {ranks(2, 1, 1), whole_batch},
                        {ranks(2, 1, 1), whole_batch, zero_1, zb_h1},
                        {ranks(4, 1, 1), micro_batch(1)},
                        {ranks(4, 1, 1), whole_batch, zero_1},
                        {ranks(8, 1, 1), whole_batch}});
  }
}

TEST_F(NoiseScaleTest, NormsOfPipelines) {
  for (const std::vector<Change>& base : {std::vector<Change>{tied}, {}}) {
    expect_norms(base, {{ranks(1, 1, 2), micro_batch(1)},
                        {ranks(1, 1, 2), micro_batch(2), zb_h1},
                        {ranks(1, 1, 2), micro_batch(2), interleaved},
                        {ranks(1, 1, 4), micro_batch(4), gpipe},
                        {ranks(1, 1, 4), micro_batch(1), zb_h1, recompute(Recompute::attention)},
                        {ranks(2, 1, 2), micro_batch(2), interleaved, zero_1},
                        {ranks(2, 1, 2), whole_batch, zb_h1},
                        {ranks(2, 1, 4), micro_batch(2), zb_h1, zero_1},
                        {ranks(2, 1, 4), whole_batch, zero_1},
                        {ranks(4, 1, 2), whole_batch, gpipe},
                        {ranks(4, 1, 2), micro_batch(1), interleaved}});
  }
}

// Snapshots then have the parameters' names.
const Change stored_by_parameter = [](RunConfig& config) { config.model.architecture = Architecture::llama; };

TEST_F(NoiseScaleTest, NormsWithTensorParallelism) {
  for (const std::vector<Change>& base : {std::vector<Change>{tied, kv_heads(1)},
                                          {biases_everywhere},
                                          {kv_heads(4), normalized_heads},
                                          {kv_heads(4), like_gpt2, stored_by_parameter, tied},
                                          {kv_heads(2), normalized_outputs_and_projections}}) {
    expect_norms(base, {{ranks(1, 2, 1), micro_batch(2)},
                        {ranks(1, 4, 1), micro_batch(1), zb_h1},
                        {ranks(2, 2, 1), whole_batch, zero_1},
                        {ranks(2, 4, 1), whole_batch},
                        {ranks(1, 4, 2), micro_batch(2), interleaved},
                        {ranks(1, 2, 4), micro_batch(2), gpipe},
                        {ranks(2, 2, 2), micro_batch(1), zb_h1, zero_1},
                        {ranks(2, 2, 2), whole_batch, recompute(Recompute::full)},
                        {ranks(2, 2, 2), micro_batch(2), interleaved}});
  }
}

TEST_F(NoiseScaleTest, NormsWithSequenceParallelism) {
  for (const std::vector<Change>& base : {std::vector<Change>{tied, kv_heads(1), biases_everywhere}, {kv_heads(2)}}) {
    expect_norms(join(base, {ranks(1, 2, 1), sequence_parallel}),
                 {{ranks(1, 2, 1), micro_batch(4)},
                  {ranks(1, 4, 1), micro_batch(1), zb_h1},
                  {ranks(2, 2, 1), whole_batch},
                  {ranks(2, 4, 1), whole_batch, zero_1},
                  {ranks(4, 2, 1), micro_batch(1), zero_1},
                  {ranks(1, 4, 2), micro_batch(2), interleaved, recompute(Recompute::attention)},
                  {ranks(1, 2, 4), micro_batch(1), zb_h1},
                  {ranks(2, 2, 2), whole_batch, zb_h1, zero_1},
                  {ranks(2, 2, 2), micro_batch(2), interleaved}});
  }
}

// With several micro-batches, ZeRO-2 and 3 measure every rank's first one.
TEST_F(NoiseScaleTest, NormsOfShares) {
  for (const std::vector<Change>& base : {std::vector<Change>{tied}, {biases}}) {
    expect_norms(base, {{ranks(2, 1, 1), micro_batch(1), zero_2},
                        {ranks(2, 1, 1), micro_batch(2), zero_3, recompute(Recompute::full)},
                        {ranks(2, 1, 1), micro_batch(2), zero_3_keeping, gpipe},
                        {ranks(2, 1, 2), micro_batch(1), zero_3, zb_h1},
                        {ranks(2, 1, 2), micro_batch(2), zero_2, interleaved},
                        {ranks(2, 1, 4), micro_batch(2), zero_3, zb_h1},
                        {ranks(4, 1, 1), whole_batch, zero_2},
                        {ranks(4, 1, 2), micro_batch(1), zero(3, 2)},
                        {ranks(8, 1, 1), whole_batch, zero_3}});
  }
  for (const std::vector<Change>& base : {std::vector<Change>{tied, kv_heads(1)}, {kv_heads(4)}}) {
    expect_norms(base, {{ranks(2, 2, 1), whole_batch, zero_3},
                        {ranks(2, 4, 1), micro_batch(1), zero_2},
                        {ranks(2, 2, 2), micro_batch(1), zb_h1, zero_3},
                        {ranks(2, 2, 2), micro_batch(2), interleaved, zero_2}});
  }
  expect_norms({tied, kv_heads(1), ranks(2, 2, 1), sequence_parallel},
               {{ranks(2, 2, 1), micro_batch(1), zero_3},
                {ranks(4, 2, 1), whole_batch, zero_2},
                {ranks(2, 2, 2), micro_batch(2), interleaved, zero_3_keeping},
                {ranks(2, 2, 2), micro_batch(1), zb_h1, zero_2}});
}

TEST_F(NoiseScaleTest, NormsOfASplitMicroBatch) {
  const std::vector<Change> base{tied, whole_batch};
  expect_norms(base, {{ranks(1, 1, 1)},
                      {ranks(1, 1, 2), zb_h1},
                      {ranks(1, 1, 4), gpipe},
                      {ranks(1, 1, 4), recompute(Recompute::full), zero_1},
                      {ranks(1, 2, 1)},
                      {ranks(1, 4, 2), zb_h1}});
  expect_norms(join(base, {kv_heads(1), ranks(1, 2, 1), sequence_parallel}),
               {{ranks(1, 2, 1)}, {ranks(1, 4, 1)}, {ranks(1, 4, 2), zb_h1}});
  // Three samples are split unevenly, into one and two.
  expect_norms({global_batch(3), whole_batch}, {{ranks(1, 1, 1)}, {ranks(1, 1, 2)}, {ranks(1, 4, 1), zb_h1}});
}

// Parts of the same size give the same numbers to 1e-6 in any layout. Here they are equal to the bit, except with
// tensor parallelism, which rounds elsewhere.
TEST_F(NoiseScaleTest, NormsAreEqualWhereMicroBatchesAre) {
  const std::vector<Change> base{tied, kv_heads(1)};
  const Weights weights(config(base).model);
  const auto expect_equal = [&](const std::vector<std::vector<Change>>& layouts, bool bitwise) {
    const std::vector<StepRecord> expected = measure(config(join(base, layouts[0])), weights, 2);
    for (size_t i = 1; i < layouts.size(); ++i) {
      const std::vector<StepRecord> records = measure(config(join(base, layouts[i])), weights, 2);
      for (size_t step = 0; step < records.size(); ++step) {
        SCOPED_TRACE(concat("layout ", i, ", step ", step + 1));
        ASSERT_TRUE(records[step].small_batch_squared_norm && expected[step].small_batch_squared_norm);
        const double norm = *records[step].small_batch_squared_norm;
        const double expected_norm = *expected[step].small_batch_squared_norm;
        EXPECT_EQ(records[step].small_batch, expected[step].small_batch);
        expect_close(norm, expected_norm, 1e-6);
        expect_close(records[step].grad_norm, expected[step].grad_norm, 0.5e-6);
        EXPECT_TRUE(!bitwise || norm == expected_norm) << norm << " and " << expected_norm;
      }
    }
  };
  for (const auto& [num_ranks, size] : {std::pair<int64_t, int64_t>{1, 1}, {1, 2}, {2, 1}, {2, 2}}) {
    SCOPED_TRACE(concat(num_ranks, " ranks, micro-batches of ", size));
    const Change parts = micro_batch(size);
    expect_equal({{ranks(num_ranks, 1, 1), parts},
                  {ranks(num_ranks, 1, 1), parts, zero_1, zb_h1},
                  {ranks(num_ranks, 1, 2), parts, interleaved},
                  {ranks(num_ranks, 1, 4), parts, zb_h1, zero_1, recompute(Recompute::full)}},
                 true);
    expect_equal({{ranks(num_ranks, 1, 2), parts},
                  {ranks(num_ranks, 2, 1), parts},
                  {ranks(num_ranks, 4, 1), parts, sequence_parallel}},
                 false);
  }
  expect_equal({{ranks(2, 1, 1), whole_batch},
                {ranks(2, 1, 2), whole_batch, zb_h1},
                {ranks(2, 1, 4), whole_batch, zero_1, gpipe}},
               true);
  expect_equal({{ranks(4, 1, 1), whole_batch}, {ranks(4, 2, 1), whole_batch, sequence_parallel, zero_1}}, false);
  expect_equal({{ranks(2, 1, 1), whole_batch},
                {ranks(2, 1, 1), whole_batch, zero_2},
                {ranks(2, 1, 2), whole_batch, zero_3, zb_h1},
                {ranks(2, 1, 4), whole_batch, zero_3_keeping, gpipe}},
               true);
  expect_equal({{ranks(2, 1, 1), micro_batch(1), zero_2},
                {ranks(2, 1, 2), micro_batch(1), zero_3, interleaved},
                {ranks(2, 1, 4), micro_batch(1), zero_3_keeping, zb_h1}},
               true);
}

// The samples of one part of a step's batch, which dual norms compare with the others: ranges of first and count.
std::vector<std::pair<int64_t, int64_t>> part_of_samples(const RunConfig& config) {
  const int64_t of_rank = samples_per_rank(config), num_ranks = config.parallel.data_parallel;
  const int64_t micro_batch = std::min(of_rank, config.train.micro_batch);
  if (num_ranks == 1) return {{0, micro_batch == of_rank ? std::max<int64_t>(1, of_rank / 8) : micro_batch}};
  if (config.parallel.zero_stage < 2 || micro_batch == of_rank) return {{0, num_ranks / 2 * of_rank}};
  std::vector<std::pair<int64_t, int64_t>> first_micro_batches;
  for (int64_t rank = 0; rank < num_ranks; ++rank) first_micro_batches.emplace_back(rank * of_rank, micro_batch);
  return first_micro_batches;
}

// In the norm of sign descent, whose noise and signal follow from the gradients of single samples. The first step has
// no second moments and is not measured. Signs of elements near zero may differ in fp32.
TEST_F(NoiseScaleTest, DualNormsCompareTwoPartsOfTheSamples) {
  const Change dual = [](RunConfig& config) {
    config.noise_scale.dual_interval = 1;
    config.train.clip_norm = 0;
    config.optimizer.lr = 1e-30;
  };
  const Change never_split = [](RunConfig& config) { config.noise_scale.split_interval = 1000; };
  for (const std::vector<Change>& base :
       {std::vector<Change>{tied, kv_heads(1), dual}, {disabled, never_split, dual}, {global_batch(6), dual}}) {
    const RunConfig whole = config(base);
    const Weights weights(whole.model);
    const int64_t batch = whole.train.global_batch;
    const SampleGradients gradients(weights, whole, 2 * batch);
    const at::Tensor all = gradients.hidden_sum(batch, batch) / gradients.loss_tokens(batch, batch);
    std::vector<std::vector<Change>> layouts = {
        {ranks(1, 1, 1), micro_batch(2)},        {ranks(1, 1, 1), whole_batch},
        {ranks(1, 4, 1), micro_batch(2)},        {ranks(1, 4, 2), micro_batch(1), zb_h1},
        {ranks(2, 1, 1), micro_batch(1)},        {ranks(2, 2, 1), whole_batch, zero_3},
        {ranks(2, 4, 1), micro_batch(1), zero_2}};
    if (batch == 8) {
      layouts.push_back({ranks(1, 1, 2), micro_batch(4), interleaved});
      layouts.push_back({ranks(2, 2, 2), micro_batch(2), interleaved, zero_1});
      layouts.push_back({ranks(4, 2, 1), micro_batch(1), zero_1, sequence_parallel});
      layouts.push_back({ranks(4, 1, 2), micro_batch(1), zero(3, 2)});
      layouts.push_back({ranks(4, 1, 1), whole_batch, zero(1, 2)});
    } else {
      layouts.push_back({ranks(3, 1, 1), micro_batch(1)});
      layouts.push_back({ranks(3, 1, 2), micro_batch(1), zero_3});
    }
    for (const std::vector<Change>& layout : layouts) {
      const RunConfig changed = config(join(base, layout));
      SCOPED_TRACE(concat(to_string(configuration_of(changed)), changed.noise_scale.enabled ? "" : ", disabled"));
      DualNoiseAverage measured;
      train(changed, [&](Trainer& trainer, World& world) {
        trainer.load(weights.views());
        take_steps(trainer, world, 2);
        if (world.rank() == 0) measured = trainer.state().sign_noise;
      });
      at::Tensor sum = all.mul(0);
      double samples = 0;
      for (const auto& [first, count] : part_of_samples(changed)) {
        sum += gradients.hidden_sum(batch + first, count) / gradients.loss_tokens(batch, batch);
        samples += static_cast<double>(count);
      }
      const double share = samples / static_cast<double>(batch), ratio = share / (1 - share);
      const at::Tensor gradient = sum / share, mean = (all - sum) / (1 - share);
      const double noise = (gradient - mean).abs().sum().item<double>() * std::sqrt(samples / (1 + ratio));
      EXPECT_EQ(measured.weight, 1);
      expect_close(measured.noise, noise, 1e-5);
      EXPECT_NEAR(measured.signal, (gradient * mean.sign()).sum().item<double>(),
                  1e-4 * gradient.abs().sum().item<double>());
    }
  }
}

// bf16 keeps 8 bits of activations and their gradients; main gradients and norms stay fp32.
TEST_F(NoiseScaleTest, NormsWithRoundedActivations) {
  expect_norms({bf16, tied, kv_heads(1)},
               {{ranks(1, 1, 1), micro_batch(2)},
                {ranks(2, 2, 2), micro_batch(2), sequence_parallel, zero_1, zb_h1},
                {ranks(2, 1, 2), whole_batch, zero_1},
                {ranks(1, 1, 1), whole_batch}},
               0.02, 0.02);
}

TEST_F(NoiseScaleTest, OneSampleOrPartsThatCannotBeSharedAreNotMeasured) {
  const Change odd_length = [](RunConfig& config) { config.train.sequence_length = 15; };
  for (const std::vector<Change>& changes : {std::vector<Change>{global_batch(1), micro_batch(1), split_every_step},
                                             std::vector<Change>{global_batch(2), micro_batch(2), split_every_step,
                                                                 odd_length, ranks(1, 2, 1), sequence_parallel}}) {
    const RunConfig never = config(changes);
    for (const StepRecord& record : measure(never, Weights(never.model), 3)) {
      EXPECT_EQ(record.small_batch, std::nullopt);
      EXPECT_EQ(record.small_batch_squared_norm, std::nullopt);
      EXPECT_EQ(record.noise_scale_low, std::nullopt);
      EXPECT_EQ(record.noise_scale, std::nullopt);
    }
  }
}

// ---- noise of a finite data set -------------------------------------------------------------------------------------

// A data set of 64 samples without masked tokens, each visited once per epoch. Their gradients are one draw from the
// text's distribution. They give unbiased estimates of its tr(Sigma) = sum |g_i - g|^2 / (N - 1) and |G|^2 = |g|^2 -
// tr(Sigma) / N, with g their mean. A batch of k is a sample of them without replacement, so E|g_k|^2 = |g|^2 +
// tr(Sigma) (1/k - 1/N) =
// G|^2 + tr(Sigma) / k. Training's estimates therefore have exactly these expected values, for any batch size.
class FiniteDataTest : public NoiseScaleTest {
 protected:
  static constexpr int64_t num_samples = 64, epochs = 8, length = 16;

  FiniteDataTest() {
    std::ofstream file(corpus(), std::ios::trunc);
    std::string text;
    for (int i = 0; text.size() <= num_samples * length; ++i) text += concat(i * i % 97, " words; ", i, ' ');
    file << text.substr(0, num_samples * length + 1);
    file.close();

    const RunConfig whole = finite({});
    EXPECT_EQ(open_data(whole).loss_tokens(0, num_samples), num_samples * length);
    const SampleGradients gradients(Weights(whole.model), whole, num_samples);
    constexpr auto n = static_cast<double>(num_samples), squared_length = static_cast<double>(length * length);
    const double squared_mean = gradients.squared_norm(0, num_samples) / squared_length / (n * n);
    exact_.trace = (gradients.sum_of_squared_norms() / squared_length - n * squared_mean) / (n - 1);
    exact_.squared_gradient = squared_mean - exact_.trace / n;
  }

  RunConfig finite(const std::vector<Change>& changes) const {
    const std::vector<Change> base = {tied, biases, [](RunConfig& config) {
                                        config.data.document_separator.clear();
                                        config.noise_scale.window_samples = std::numeric_limits<double>::infinity();
                                        config.noise_scale.split_interval = 1;
                                      }};
    return config(join(base, changes));
  }

  // The noise scale that a layout has estimated after some epochs; the averages cover the later ones.
  NoiseScale estimate(const std::vector<Change>& changes) const {
    const RunConfig changed = finite(changes);
    const std::vector<StepRecord> records =
        measure(changed, Weights(changed.model), epochs * num_samples / changed.train.global_batch);
    Replay replay(changed);
    replay.add(records);
    const std::optional<NoiseScale> noise = replay.noise_scale();
    expect_noise_scale(records.back(), noise);
    return noise.value_or(NoiseScale{});
  }

  // Expects the exact value within the errors, which must be small enough to detect a mistake by a factor of 2.
  void expect_exact(const NoiseScale& noise) const {
    const auto expect_within = [](const MeanEstimate& estimate, double exact) {
      EXPECT_LT(std::abs(estimate.value - exact), 3 * estimate.standard_error) << estimate.value << ", exact " << exact;
      EXPECT_LT(estimate.standard_error, 0.25 * exact);
    };
    expect_within(noise.squared_gradient, exact_.squared_gradient);
    expect_within(noise.trace, exact_.trace);
    const double exact = exact_.trace / exact_.squared_gradient;
    ASSERT_TRUE(noise.value && noise.high);
    EXPECT_LT(noise.low, exact);
    EXPECT_GT(*noise.high, exact);
    EXPECT_NEAR(*noise.value / exact, 1, 0.5);
  }

  GradientNoise exact_;
};

TEST_F(FiniteDataTest, EverySourceFindsTheExactNoise) {
  const double exact = exact_.trace / exact_.squared_gradient;
  EXPECT_GT(exact, 1) << "noise should matter at the batch of this test";
  EXPECT_LT(exact, 64);
  expect_exact(estimate({ranks(1, 1, 1), micro_batch(1)}));
  expect_exact(estimate({ranks(1, 1, 1), micro_batch(4)}));
  expect_exact(estimate({ranks(2, 1, 1), micro_batch(1)}));
  expect_exact(estimate({ranks(2, 1, 1), whole_batch}));
  expect_exact(estimate({ranks(2, 1, 1), micro_batch(1), zero_2}));
  expect_exact(estimate({ranks(1, 1, 1), whole_batch}));
}

TEST_F(FiniteDataTest, TheNoiseIsThatOfModelAndDataInEveryLayout) {
  const std::vector<std::vector<Change>> layouts = {{ranks(1, 1, 1), micro_batch(2)},
                                                    {ranks(2, 1, 1), micro_batch(1), zero_1},
                                                    {ranks(2, 1, 1), micro_batch(2)},
                                                    {ranks(4, 1, 1), micro_batch(1)},
                                                    {ranks(4, 1, 1), whole_batch, zero_1},
                                                    {ranks(8, 1, 1), whole_batch},
                                                    {ranks(1, 1, 2), micro_batch(2), interleaved},
                                                    {ranks(1, 1, 4), whole_batch, zb_h1},
                                                    {ranks(1, 4, 1), micro_batch(4), sequence_parallel},
                                                    {ranks(2, 2, 1), whole_batch, sequence_parallel},
                                                    {ranks(2, 2, 2), micro_batch(1), zb_h1, zero_1},
                                                    {ranks(1, 4, 2), micro_batch(2), interleaved, sequence_parallel},
                                                    {ranks(2, 1, 1), micro_batch(1), zero_3},
                                                    {ranks(2, 2, 2), micro_batch(1), zb_h1, zero_2},
                                                    {ranks(2, 1, 2), micro_batch(2), global_batch(16)},
                                                    {ranks(4, 2, 1), whole_batch, global_batch(16)}};
  std::vector<NoiseScale> estimates;
  for (size_t i = 0; i < layouts.size(); ++i) {
    SCOPED_TRACE(concat("layout ", i));
    estimates.push_back(estimate(layouts[i]));
    expect_exact(estimates.back());
  }
  const auto expect_agree = [](const MeanEstimate& a, const MeanEstimate& b) {
    EXPECT_LT(std::abs(a.value - b.value), 3 * std::hypot(a.standard_error, b.standard_error));
  };
  for (size_t i = 0; i < estimates.size(); ++i) {
    for (size_t j = 0; j < i; ++j) {
      SCOPED_TRACE(concat("layouts ", i, " and ", j));
      expect_agree(estimates[i].squared_gradient, estimates[j].squared_gradient);
      expect_agree(estimates[i].trace, estimates[j].trace);
    }
  }
}

}  // namespace
}  // namespace copus
