// Compares Muon's updates with a float64 reference that uses a singular value decomposition instead of matrix products.
#include "copus/train/step/orthogonalization.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <random>
#include <string>

#include "copus/comm/solo_communicator.h"
#include "copus/model/kernels/kernels.h"
#include "copus/model/memory/flat_memory.h"
#include "copus/train/optimizer/muon.h"
#include "copus/train/step/step_agreement.h"
#include "copus/train/testing/test_layouts.h"

namespace copus {
namespace {

using namespace layouts;

RunConfig small_muon_run() {
  RunConfig config = small_run("");
  muon(config);
  config.model.hidden_size = 16;
  config.model.intermediate_size = 40;
  config.model.num_layers = 4;
  config.model.head_dim = 4;
  config.train.sequence_length = 8;
  config.optimizer.weight_decay = 0.3;
  return config;
}

// The whole gradient of a parameter in a step, the same in every layout.
at::Tensor gradient_of(const ParameterInfo& info, int64_t step) {
  std::seed_seq seed(info.name.begin(), info.name.end());
  std::mt19937_64 random(seed);  // ranks are threads, which share ATen's generator
  random.discard(static_cast<uint64_t>(step) * 100000);
  std::normal_distribution<double> normal;
  at::Tensor values = at::empty(info.shape, at::kDouble);
  for (int64_t i = 0; i < values.numel(); ++i) values.data_ptr<double>()[i] = normal(random);
  return values;
}

at::Tensor part_of(at::Tensor whole, const Box& box) {
  for (size_t dimension = 0; dimension < box.shape.size(); ++dimension) {
    whole = whole.narrow(static_cast<int64_t>(dimension), box.begin[dimension], box.shape[dimension]);
  }
  return whole;
}

// Sets this rank's reduced gradients.
void set_gradients(const ParameterStore& store, int64_t step) {
  for (const Parameter& parameter : store.parameters()) {
    if (parameter.tied_copy) continue;
    const at::Tensor flat = part_of(gradient_of(parameter.info, step), parameter.box).contiguous().view({-1});
    const Bucket& bucket = store.buckets()[parameter.bucket];
    const int64_t begin = std::max(parameter.offset, bucket.shard_begin);
    const int64_t end = std::min(parameter.offset + flat.numel(), bucket.shard_end);
    if (begin >= end) continue;
    bucket.gradient_shard.narrow(0, begin - bucket.shard_begin, end - begin)
        .copy_(flat.narrow(0, begin - parameter.offset, end - begin));
  }
}

constexpr double clip_norm = 30;
constexpr int num_steps = 3;
double rate_of(int64_t step) { return step % 2 == 0 ? 1e-2 : 3e-2; }

// One rank with weights of this type.
struct Rank {
  Rank(const RunConfig& config, at::ScalarType dtype, const ParallelStrategy& strategy, World& world)
      : recorder(world),
        groups(world, strategy, recorder),
        placement(place(config.model, strategy, config.train.sequence_length, world.rank())),
        state(allocate_zeros(config.model, placement, dtype, 2, *allocator_memory(at::kCPU))),
        parameters(config.model, dtype, placement, state),
        optimizer(parameters, config.optimizer, state),
        orthogonalization(parameters, config.optimizer, optimizer, groups) {
    parameters.initialize(5);
  }

  void update(double clip) {
    for (int64_t step = 0; step < num_steps; ++step) {
      set_gradients(parameters, step);
      const ExactSum norm = optimizer.squared_gradient_norm();
      const double factor = clip_factor(std::sqrt(agree_on_squared_norm(norm, groups.everyone())), clip);
      orthogonalization.run(factor);
      optimizer.step({.number = step + 1, .learning_rate = rate_of(step), .gradient_factor = factor});
    }
  }

  StepRecorder recorder;
  RankGroups groups;
  const Placement placement;
  const std::vector<BucketState> state;
  ParameterStore parameters;
  Muon optimizer;
  Orthogonalization orthogonalization;
};

// Makes updates on every rank of a layout, and runs `body` on it.
void on_every_rank(const RunConfig& config, at::ScalarType dtype, const ParallelStrategy& strategy,
                   const std::function<void(Rank&)>& body) {
  run_ranks_as_threads(strategy.world_size(), [&](World& world) {
    kernels::set_num_threads(1);
    Configuration configuration;
    configuration.strategy = strategy;
    world.require(groups_of(config, configuration));
    Rank rank(config, dtype, strategy, world);
    rank.update(config.train.clip_norm);
    body(rank);
  });
}

double polynomials_of(const MuonSettings& settings, double x) {
  for (const QuinticPolynomial& p : newton_schulz_polynomials(settings.newton_schulz, settings.newton_schulz_steps)) {
    x = p.a * x + p.b * std::pow(x, 3) + p.c * std::pow(x, 5);
  }
  return x;
}

// The weights of all hidden matrices after the updates, by the published algorithm in float64.
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
      // As published the momentum is a sum, not an average; its scale does not matter.
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

TEST(Orthogonalization, FollowsThePublishedAlgorithmInFloat64) {
  for (const NewtonSchulz polynomials : {NewtonSchulz::jordan, NewtonSchulz::polar_express}) {
    for (const bool nesterov : {true, false}) {
      for (const UpdateScale scale : {UpdateScale::match_rms_adamw, UpdateScale::original}) {
        RunConfig config = small_muon_run();
        config.train.clip_norm = nesterov ? clip_norm : 0;
        config.optimizer.muon.newton_schulz = polynomials;
        config.optimizer.muon.nesterov = nesterov;
        config.optimizer.muon.update_scale = scale;
        const std::map<std::string, at::Tensor> expected = reference(config);
        on_every_rank(config, at::kDouble, {}, [&](Rank& rank) {
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

// In fp32 the error is rounding in five iterations. In bf16 it is bf16's rounding in them, relative to updates that are
// small beside the weights.
TEST(Orthogonalization, IsCloseToFloat64InLowerPrecision) {
  for (const auto& [precision, tolerance] : {std::pair(Precision::fp32, 1e-5), std::pair(Precision::bf16, 0.02)}) {
    RunConfig config = small_muon_run();
    config.optimizer.muon.newton_schulz_precision = precision;
    const std::map<std::string, at::Tensor> expected = reference(config);
    on_every_rank(config, at::kFloat, {}, [&](Rank& rank) {
      for (const Parameter& parameter : rank.parameters.parameters()) {
        if (!is_hidden_matrix(parameter.info)) continue;
        const at::Tensor& right = expected.at(parameter.info.name);
        EXPECT_LE(relative_error(rank.parameters.master(parameter), right), tolerance) << parameter.info.name;
      }
    });
  }
}

// Ranks that hold parts of matrices leave the bits that one rank with whole matrices leaves. 24 ranks have fewer
// matrices than ranks in a pipeline rank.
TEST(Orthogonalization, TheSameGradientsGiveTheSameBitsInEveryLayout) {
  const RunConfig config = small_muon_run();
  std::map<std::string, at::Tensor> expected;
  on_every_rank(config, at::kFloat, {}, [&](Rank& rank) {
    for (const Parameter& parameter : rank.parameters.parameters()) {
      expected[parameter.info.name] = rank.parameters.master(parameter).clone();
    }
  });
  const std::vector<ParallelStrategy> strategies = {
      {.data_parallel = 2},
      {.data_parallel = 3, .zero_stage = 1},
      {.data_parallel = 4, .zero_stage = 2, .zero_replicas = 2},
      {.tensor_parallel = 2},
      {.tensor_parallel = 4},  // two ranks share a key/value head
      {.data_parallel = 2, .tensor_parallel = 2, .zero_stage = 3},
      {.data_parallel = 2, .tensor_parallel = 2, .pipeline_parallel = 2, .zero_stage = 1},
      {.data_parallel = 8, .zero_stage = 1},
      {.data_parallel = 12, .pipeline_parallel = 4, .zero_stage = 1},
  };
  for (const ParallelStrategy& strategy : strategies) {
    on_every_rank(config, at::kFloat, strategy, [&](Rank& rank) {
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
      for (const at::Tensor& slot : rank.optimizer.slot_tensors(1)) EXPECT_TRUE(slot.isfinite().all().item<bool>());
    });
  }
}

// A matrix without gradients gets no update but weight decay.
TEST(Orthogonalization, AZeroMatrixStaysZero) {
  const at::Tensor zero = at::zeros({3, 5}, at::kFloat);
  const auto polynomials = newton_schulz_polynomials(NewtonSchulz::jordan, 5);
  EXPECT_TRUE(kernels::map_singular_values(zero, polynomials, at::kBFloat16).equal(zero));
}

}  // namespace
}  // namespace copus
