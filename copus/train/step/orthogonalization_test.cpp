// Compares Muon's updates with a float64 reference that uses a singular value decomposition, not matrix products.
#include "copus/train/step/orthogonalization.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <string>
#include <utility>

#include "copus/train/testing/given_gradients.h"

namespace copus {
namespace {

using namespace given_gradients;

double polynomials_of(const MuonSettings& settings, double x) {
  for (const QuinticPolynomial& p : newton_schulz_polynomials(settings.newton_schulz, settings.newton_schulz_steps)) {
    x = p.a * x + p.b * std::pow(x, 3) + p.c * std::pow(x, 5);
  }
  return x;
}

// Returns the weights of all hidden matrices after the updates, by the published algorithm in float64.
std::map<std::string, at::Tensor> reference(const RunConfig& config) {
  ParameterStore store(config.model, at::kDouble, at::kCPU);
  store.initialize(5);
  const MuonSettings& settings = config.optimizer.muon;
  std::vector<double> norms(num_steps);
  for (int64_t step = 0; step < num_steps; ++step) {
    for (const Parameter& parameter : store.parameters()) {
      norms[step] += gradient_of(parameter.info, step).square().sum().item<double>();
    }
  }
  std::map<std::string, at::Tensor> weights;
  for (const Parameter& parameter : store.parameters()) {
    if (!is_hidden_matrix(parameter.info)) continue;
    const int64_t rows = parameter.info.shape[0], columns = parameter.info.shape[1];
    at::Tensor weight = store.master(parameter).clone(), momentum = at::zeros({rows, columns}, at::kDouble);
    for (int64_t step = 0; step < num_steps; ++step) {
      const at::Tensor gradient =
          gradient_of(parameter.info, step) * clip_factor(std::sqrt(norms[step]), config.train.clip_norm);
      // As published, the momentum is a sum, not an average. Its scale does not matter.
      momentum = settings.momentum * momentum + gradient;
      const at::Tensor ahead = settings.nesterov ? settings.momentum * momentum + gradient : momentum;
      auto [u, s, v] = at::linalg_svd(ahead / ahead.norm(), /*full_matrices=*/false);
      for (int64_t i = 0; i < s.numel(); ++i) s[i] = polynomials_of(settings, s[i].item<double>());
      const double factor = settings.update_scale == UpdateScale::original
                                ? std::sqrt(std::max(1.0, static_cast<double>(rows) / static_cast<double>(columns)))
                                : 0.2 * std::sqrt(static_cast<double>(std::max(rows, columns)));
      const double rate = rate_of(step);
      weight = weight * (1 - rate * config.optimizer.weight_decay) - rate * factor * (u * s).matmul(v);
    }
    weights[parameter.info.name] = weight;
  }
  return weights;
}

double relative_error(const at::Tensor& ours, const at::Tensor& expected) {
  return ((ours.to(at::kDouble) - expected).norm() / expected.norm()).item<double>();
}

// Returns the largest element of this rank's directions.
double largest_direction(const Rank& rank) {
  double largest = 0;
  for (const SharedMatrix& matrix : rank.exchange.matrices()) {
    for (const MatrixPart& part : matrix.parts) {
      const bool is_here = part.tensor == rank.groups.here().tensor &&
                           part.shard == rank.groups.here().data % rank.parameters.placement().strategy.zero_shards();
      if (!is_here && rank.parameters.placement().strategy.cuts_optimizer()) continue;
      if (part.tensor != rank.groups.here().tensor) continue;
      const at::Tensor directions = rank.exchange.view(rank.optimizer.slot_tensors(1)[matrix.bucket], matrix, part);
      largest = std::max(largest, directions.abs().max().item<double>());
    }
  }
  return largest;
}

TEST(Orthogonalization, FollowsThePublishedAlgorithmInFloat64) {
  for (const NewtonSchulz polynomials : {NewtonSchulz::jordan, NewtonSchulz::polar_express}) {
    for (const bool nesterov : {true, false}) {
      for (const UpdateScale scale : {UpdateScale::match_rms_adamw, UpdateScale::original}) {
        RunConfig config = small_run_by_muon();
        config.train.clip_norm = nesterov ? clip_norm : 0;
        config.optimizer.muon.newton_schulz = polynomials;
        config.optimizer.muon.nesterov = nesterov;
        config.optimizer.muon.update_scale = scale;
        const std::map<std::string, at::Tensor> expected = reference(config);
        update_every_rank(config, at::kDouble, {}, [&](Rank& rank) {
          for (const Parameter& parameter : rank.parameters.parameters()) {
            if (!is_hidden_matrix(parameter.info)) continue;
            const at::Tensor& right = expected.at(parameter.info.name);
            EXPECT_LE(relative_error(rank.parameters.master(parameter), right), 1e-11) << parameter.info.name;
          }
        });
      }
    }
  }
}

// In fp32 the error is the rounding of five iterations. In bf16 it is bf16's rounding, relative to updates that are
// small compared with the weights.
TEST(Orthogonalization, IsCloseToFloat64InLowerPrecision) {
  for (const auto& [precision, tolerance] : {std::pair(Precision::fp32, 1e-5), std::pair(Precision::bf16, 0.02)}) {
    RunConfig config = small_run_by_muon();
    config.optimizer.muon.newton_schulz_precision = precision;
    const std::map<std::string, at::Tensor> expected = reference(config);
    update_every_rank(config, at::kFloat, {}, [&](Rank& rank) {
      for (const Parameter& parameter : rank.parameters.parameters()) {
        if (!is_hidden_matrix(parameter.info)) continue;
        const at::Tensor& right = expected.at(parameter.info.name);
        EXPECT_LE(relative_error(rank.parameters.master(parameter), right), tolerance) << parameter.info.name;
      }
    });
  }
}

// Ranks with parts of matrices compute the same bits as one rank with whole matrices.
TEST(Orthogonalization, TheSameGradientsGiveTheSameBitsInEveryLayout) {
  const RunConfig config = small_run_by_muon();
  std::map<std::string, at::Tensor> expected;
  update_every_rank(config, at::kFloat, {}, [&](Rank& rank) {
    for (const Parameter& parameter : rank.parameters.parameters()) {
      expected[parameter.info.name] = rank.parameters.master(parameter).clone();
    }
  });
  for (const ParallelStrategy& strategy : sharing_layouts) {
    update_every_rank(config, at::kFloat, strategy, [&](Rank& rank) {
      for (const Parameter& parameter : rank.parameters.parameters()) {
        const at::Tensor flat = part_of(expected.at(parameter.info.name), parameter.box).contiguous().view({-1});
        const Bucket& bucket = rank.parameters.buckets()[parameter.bucket];
        const int64_t begin = std::max(parameter.offset, bucket.shard_begin);
        const int64_t end = std::min(parameter.offset + flat.numel(), bucket.shard_end);
        if (begin >= end) continue;
        const at::Tensor ours = bucket.master.narrow(0, begin - bucket.shard_begin, end - begin);
        EXPECT_TRUE(ours.equal(flat.narrow(0, begin - parameter.offset, end - begin)))
            << parameter.info.name << " with " << to_string(strategy);
      }
      EXPECT_EQ(largest_direction(rank), 0);
    });
  }
}

TEST(Orthogonalization, DirectionsOfAnUpdateThatIsNotMadeAreDiscarded) {
  const RunConfig config = small_run_by_muon();
  for (const ParallelStrategy& strategy : {ParallelStrategy{}, {.data_parallel = 3, .zero_stage = 1}}) {
    update_every_rank(config, at::kFloat, strategy, [](Rank& rank) {
      set_gradients(rank.parameters, 0);
      rank.orthogonalization->run(1);
      EXPECT_GT(largest_direction(rank), 0);
      rank.optimizer.discard_directions();
      EXPECT_EQ(largest_direction(rank), 0);
    });
  }
}

// A matrix without gradients only decays.
TEST(Orthogonalization, AZeroMatrixStaysZero) {
  const at::Tensor zero = at::zeros({3, 5}, at::kFloat);
  const auto polynomials = newton_schulz_polynomials(NewtonSchulz::jordan, 5);
  EXPECT_TRUE(kernels::map_singular_values(zero, polynomials, at::kBFloat16).equal(zero));
}

}  // namespace
}  // namespace copus
