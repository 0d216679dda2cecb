// For tests of work on whole matrices: ranks of any layout with given gradients, without forward and backward passes.
#pragma once

#include <ATen/ops/empty.h>

#include <cmath>
#include <functional>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "copus/model/kernels/kernels.h"
#include "copus/model/memory/flat_memory.h"
#include "copus/train/optimizer/optimizer.h"
#include "copus/train/step/dual_norms.h"
#include "copus/train/step/orthogonalization.h"
#include "copus/train/step/step_agreement.h"
#include "copus/train/testing/test_layouts.h"

namespace copus::given_gradients {

inline RunConfig small_run_by_muon() {
  RunConfig config = layouts::small_run("");
  layouts::muon(config);
  config.model.hidden_size = 16;
  config.model.intermediate_size = 40;
  config.model.num_layers = 4;
  config.model.head_dim = 4;
  config.train.sequence_length = 8;
  config.optimizer.weight_decay = 0.3;
  return config;
}

// Returns a parameter's whole gradient in a step, the same in every layout.
inline at::Tensor gradient_of(const ParameterInfo& info, int64_t step) {
  std::seed_seq seed(info.name.begin(), info.name.end());
  std::mt19937_64 random(seed);  // ranks are threads, and would share ATen's generator
  random.discard(static_cast<uint64_t>(step) * 100000);
  std::normal_distribution<double> normal;
  at::Tensor values = at::empty(info.shape, at::kDouble);
  for (int64_t i = 0; i < values.numel(); ++i) values.data_ptr<double>()[i] = normal(random);
  return values;
}

inline at::Tensor part_of(at::Tensor whole, const Box& box) {
  for (size_t dimension = 0; dimension < box.shape.size(); ++dimension) {
    whole = whole.narrow(static_cast<int64_t>(dimension), box.begin[dimension], box.shape[dimension]);
  }
  return whole;
}

// Sets this rank's reduced gradients.
inline void set_gradients(const ParameterStore& store, int64_t step) {
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

inline constexpr double clip_norm = 30;
inline constexpr int num_steps = 3;
inline double rate_of(int64_t step) { return step % 2 == 0 ? 1e-2 : 3e-2; }

// One rank with weights of this type.
struct Rank {
  Rank(const RunConfig& config, at::ScalarType dtype, const ParallelStrategy& strategy, World& world)
      : recorder(world),
        groups(world, strategy, recorder),
        placement(place(config.model, strategy, config.train.sequence_length, world.rank())),
        state(allocate_zeros(config.model, placement, dtype, 2, *allocator_memory(at::kCPU))),
        parameters(config.model, dtype, placement, state),
        owned_optimizer(make_optimizer(parameters, config.optimizer, state)),
        optimizer(*owned_optimizer),
        exchange(parameters, groups) {
    if (needs_whole_matrices(config.optimizer.kind)) {
      orthogonalization.emplace(parameters, config.optimizer, optimizer, exchange);
    }
    parameters.initialize(5);
  }

  void update(double clip) {
    for (int64_t step = 0; step < num_steps; ++step) {
      set_gradients(parameters, step);
      const ExactSum norm = optimizer.squared_gradient_norm();
      const double factor = clip_factor(std::sqrt(agree_on_sums({&norm, 1}, groups.everyone()).front()), clip);
      if (orthogonalization) orthogonalization->run(factor);
      optimizer.step({.number = step + 1, .learning_rate = rate_of(step), .gradient_factor = factor});
    }
  }

  StepRecorder recorder;
  RankGroups groups;
  const Placement placement;
  const std::vector<BucketState> state;
  ParameterStore parameters;
  const std::unique_ptr<Optimizer> owned_optimizer;
  Optimizer& optimizer;
  MatrixExchange exchange;
  std::optional<Orthogonalization> orthogonalization;
};

// Makes updates on every rank of a layout, then runs `body` there.
inline void update_every_rank(const RunConfig& config, at::ScalarType dtype, const ParallelStrategy& strategy,
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

// Layouts in which ranks share matrices in every way. In the last one a pipeline rank has more ranks than matrices.
inline const std::vector<ParallelStrategy> sharing_layouts = {
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

}  // namespace copus::given_gradients
