// Compares measured norms with singular values from another method, and between layouts.
#include "copus/train/step/dual_norms.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cmath>
#include <set>
#include <string>
#include <vector>

#include "copus/train/testing/given_gradients.h"

namespace copus {
namespace {

using namespace given_gradients;

constexpr double given_factor = 0.5;  // on the gradients, as clipping
constexpr double given_share = 0.25;  // of the step's samples

// The gradients of a part of the samples, as GradientProbe would have kept them.
std::vector<at::Tensor> part_of_gradients(const Rank& rank, const std::vector<int64_t>& parameters) {
  std::vector<at::Tensor> kept;
  for (const int64_t index : parameters) {
    const Parameter& parameter = rank.parameters.parameters()[index];
    const at::Tensor whole = gradient_of(parameter.info, num_steps + 1);
    kept.push_back(part_of(whole, parameter.box).contiguous().view({-1}).to(rank.parameters.master_dtype()));
  }
  return kept;
}

// Returns each rank's measurement before a layout's fourth update.
std::vector<double> measure(const RunConfig& config, at::ScalarType dtype, const ParallelStrategy& strategy,
                            int64_t number) {
  std::vector<double> values;
  update_every_rank(config, dtype, strategy, [&](Rank& rank) {
    set_gradients(rank.parameters, num_steps);
    DualMeasurement measurement(rank.parameters, config.optimizer, rank.optimizer, rank.exchange);
    const auto sums = measurement.measure(number, part_of_gradients(rank, measurement.parameters_of(number)),
                                          given_share, given_factor);
    const std::vector<double> agreed = agree_on_sums(sums, rank.groups.everyone());
    if (rank.groups.everyone().rank() == 0) values = agreed;
  });
  return values;
}

// Computes the same by definition, from the parameters.
std::vector<double> expected(const RunConfig& config, const std::vector<ParameterInfo>& parameters) {
  std::vector<double> sums(DualMeasurement::num_sums);
  for (const ParameterInfo& parameter : parameters) {
    const at::Tensor part = gradient_of(parameter, num_steps + 1), whole = gradient_of(parameter, num_steps);
    const at::Tensor gradient = given_factor / given_share * part;
    const at::Tensor mean = given_factor / (1 - given_share) * (whole - part), noise = gradient - mean;
    const auto [u, s, v] = at::linalg_svd(mean, /*full_matrices=*/false);
    sums[0] += noise.abs().sum().item<double>();
    sums[1] += (gradient * mean.sign()).sum().item<double>();
    sums[2] += at::linalg_svdvals(noise).sum().item<double>();
    sums[3] += (gradient * u.matmul(v)).sum().item<double>();
    if (config.optimizer.kind != OptimizerKind::adamw) continue;
    const double beta2 = config.optimizer.beta2;
    at::Tensor squares = at::zeros(parameter.shape, at::kDouble);
    for (int64_t step = 0; step < num_steps; ++step) {
      squares = beta2 * squares + (1 - beta2) * gradient_of(parameter, step).square();
    }
    const at::Tensor scales = squares.sqrt() + config.optimizer.epsilon;
    sums[4] += (noise.square() / scales).sum().item<double>();
    sums[5] += (gradient * mean / scales).sum().item<double>();
    sums[6] += (mean.square() / scales).sum().item<double>();
  }
  return sums;
}

std::vector<ParameterInfo> hidden_matrices(const ModelDescription& model) {
  std::vector<ParameterInfo> matrices;
  for (const ParameterInfo& parameter : list_parameters(model)) {
    if (is_hidden_matrix(parameter)) matrices.push_back(parameter);
  }
  return matrices;
}

// The tolerance allows for twelve Newton-Schulz iterations, which leave singular values near zero below 1.
TEST(DualMeasurement, MatchesSingularValues) {
  RunConfig config = small_run_by_muon();
  config.train.clip_norm = 0;
  const std::vector<double> right = expected(config, hidden_matrices(config.model));
  const std::vector<double> measured = measure(config, at::kDouble, {}, 0);
  for (size_t i = 0; i < 4; ++i) EXPECT_NEAR(measured[i] / right[i], 1, 1e-4) << i;
}

// Nine layers have 63 matrices in 3 groups, 32 layers have 224 in 14 groups.
TEST(DualMeasurement, MeasuresOtherMatricesOfAllKindsInTurn) {
  for (const int64_t layers : {9, 32}) {
    RunConfig config = small_run_by_muon();
    config.train.clip_norm = 0;
    config.model.num_layers = layers;
    config.model.hidden_size = 4;
    config.model.intermediate_size = 4;
    const std::vector<ParameterInfo> all = hidden_matrices(config.model);
    const int64_t groups = layers == 9 ? 3 : 14;
    EXPECT_EQ(num_dual_groups(config.model), groups);
    update_every_rank(config, at::kDouble, {}, [&](Rank& rank) {
      const DualMeasurement measurement(rank.parameters, config.optimizer, rank.optimizer, rank.exchange);
      std::vector<int64_t> times(all.size());
      for (int64_t number = 0; number < groups; ++number) {
        std::set<std::string> kinds;
        for (size_t i = 0; i < all.size(); ++i) {
          if (!measurement.is_due(static_cast<int64_t>(i), number)) continue;
          ++times[i];
          kinds.insert(all[i].name.substr(all[i].name.find("layers.") + 9));  // the name after the layer's digits
        }
        EXPECT_GE(kinds.size(), 5) << layers << " layers, measurement " << number;
      }
      EXPECT_EQ(std::set(times.begin(), times.end()), std::set<int64_t>{1});
    });
    for (const int64_t number : {0, 2}) {
      std::vector<ParameterInfo> some;
      update_every_rank(config, at::kDouble, {}, [&](Rank& rank) {
        const DualMeasurement measurement(rank.parameters, config.optimizer, rank.optimizer, rank.exchange);
        for (size_t i = 0; i < all.size(); ++i) {
          if (measurement.is_due(static_cast<int64_t>(i), number)) some.push_back(all[i]);
        }
      });
      EXPECT_NEAR(measure(config, at::kDouble, {}, number)[0] / expected(config, some)[0], 1, 1e-9) << number;
    }
  }
}

RunConfig small_run_by_adamw() {
  RunConfig config = small_run_by_muon();
  config.optimizer.kind = OptimizerKind::adamw;
  config.noise_scale.dual_interval = 1;
  return config;
}

TEST(DualMeasurement, MatchesTheNormOfAdamWsSteps) {
  RunConfig config = small_run_by_adamw();
  config.train.clip_norm = 0;
  const std::vector<double> right = expected(config, hidden_matrices(config.model));
  const std::vector<double> measured = measure(config, at::kDouble, {}, 0);
  for (size_t i = 4; i < right.size(); ++i) EXPECT_NEAR(measured[i] / right[i], 1, 1e-9) << i;
}

TEST(DualMeasurement, NormsFollowFromSums) {
  for (const RunConfig& config : {small_run_by_muon(), small_run_by_adamw()}) {
    update_every_rank(config, at::kFloat, {}, [&](Rank& rank) {
      const DualMeasurement measurement(rank.parameters, config.optimizer, rank.optimizer, rank.exchange);
      const DualNormsOfStep norms = measurement.norms_from(std::vector<double>{1, 2, 3, 4, 25, 6, 9});
      EXPECT_EQ(norms.sign.noise, 1);
      EXPECT_EQ(norms.sign.signal, 2);
      EXPECT_EQ(norms.spectral.noise, 3);
      EXPECT_EQ(norms.spectral.signal, 4);
      ASSERT_EQ(norms.preconditioned.has_value(), config.optimizer.kind == OptimizerKind::adamw);
      if (!norms.preconditioned) return;
      EXPECT_EQ(norms.preconditioned->noise, 5);   // the root of the sum of squares
      EXPECT_EQ(norms.preconditioned->signal, 2);  // 6 over the mean's norm, the root of 9
    });
  }
}

TEST(DualMeasurement, IsTheSameToTheBitInEveryLayout) {
  for (const RunConfig& config : {small_run_by_muon(), small_run_by_adamw()}) {
    const std::vector<double> alone = measure(config, at::kFloat, {}, 0);
    for (const ParallelStrategy& strategy : sharing_layouts) {
      EXPECT_EQ(measure(config, at::kFloat, strategy, 0), alone) << to_string(strategy);
    }
  }
}

}  // namespace
}  // namespace copus
