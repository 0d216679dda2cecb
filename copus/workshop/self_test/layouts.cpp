// Switches a small model through the layouts of a job, trains it in each, and compares the results with the results of
// one rank alone.
#include <algorithm>
#include <bit>
#include <cmath>
#include <memory>
#include <numeric>
#include <utility>

#include "copus/base/error.h"
#include "copus/comm/shared_memory/single_rank_world.h"
#include "copus/config/run_config.h"
#include "copus/data/dataset.h"
#include "copus/train/trainer/trainer.h"
#include "copus/workshop/measuring_run.h"
#include "copus/workshop/self_test/parts.h"

namespace copus {

namespace {

constexpr size_t most_layouts = 12;
constexpr int64_t most_tensor_parallel = 8, most_pipeline_parallel = 8;
constexpr int64_t head_dim = 8;
constexpr int64_t steps = 3;
constexpr double share_of_speeds = 0.2;  // fraction of the time that is kept for the measurements of speed
// The largest relative differences of losses and norms that rounding in fp32 may cause if sums are in a different order
// (docs/design.md, section 6).
constexpr double most_of_loss = 1e-5, most_of_norm = 1e-3;

// Some of the job's possible layouts, from the first to the last.
std::vector<ParallelStrategy> chosen_layouts(int64_t ranks) {
  std::vector<ParallelStrategy> all = layouts_of(ranks);
  std::erase_if(all, [](const ParallelStrategy& layout) {
    return layout.tensor_parallel > most_tensor_parallel || layout.pipeline_parallel > most_pipeline_parallel;
  });
  if (all.size() <= most_layouts) return all;
  std::vector<ParallelStrategy> chosen;
  for (size_t i = 0; i < most_layouts; ++i) chosen.push_back(all[i * (all.size() - 1) / (most_layouts - 1)]);
  return chosen;
}

// A model that all these layouts can train, with few key-value heads, so that tensor-parallel ranks share them.
ModelDescription model_for(const std::vector<ParallelStrategy>& layouts) {
  int64_t heads = 1, stages = 4;
  bool are_even = true;
  for (const ParallelStrategy& layout : layouts) {
    heads = std::lcm(heads, layout.tensor_parallel);
    stages = std::max(stages, layout.pipeline_parallel);
    are_even = are_even && (layout.tensor_parallel == 1 || layout.tensor_parallel % 2 == 0);
  }
  if (heads < 4) heads *= 4;
  ModelDescription model;
  model.vocab_size = 258;
  model.hidden_size = heads * head_dim;
  model.intermediate_size = heads * head_dim * 3 / 2;
  model.num_layers = stages;
  model.num_heads = heads;
  model.num_kv_heads = are_even ? 2 : 1;
  model.head_dim = head_dim;
  model.tie_word_embeddings = true;
  return model;
}

// Micro-batches have one sequence. The global batch is a multiple of the largest number of data-parallel ranks, so that
// all layouts divide it evenly.
RunConfig config_for(const std::string& corpus, int64_t ranks) {
  const ModelDescription model = model_for(chosen_layouts(ranks));
  // a multiple of every tensor-parallel degree
  RunConfig config = endless_run(model, corpus, model.num_heads * 4);
  config.train.micro_batch = 1;
  config.train.global_batch = (4 + ranks - 1) / ranks * ranks;  // at least 4
  config.noise_scale.enabled = false;
  return config;
}

// The same layout with all options that must not change a bit: ZeRO, schedule, virtual stages and recomputation.
ParallelStrategy other_form(ParallelStrategy layout, const RunConfig& config) {
  layout.recompute = layout.data_parallel % 2 == 0 ? Recompute::attention : Recompute::full;
  if (layout.data_parallel > 1) layout.zero_stage = 1;
  if (layout.pipeline_parallel > 1) {
    ParallelStrategy interleaved = layout;
    interleaved.schedule = PipelineSchedule::interleaved_1f1b;
    interleaved.virtual_stages = 2;
    layout.schedule = PipelineSchedule::zb_h1;
    const Configuration configuration{interleaved, config.train.global_batch, config.train.micro_batch};
    if (!infeasible_reason(config.model, configuration, config.train.sequence_length)) return interleaved;
  }
  return layout;
}

Dataset open_data(const RunConfig& config) {
  return {config.data, config.train.sequence_length, config.model.vocab_size, config.execution.seed};
}

Configuration in(const ParallelStrategy& strategy, const RunConfig& config) {
  return {.strategy = strategy, .global_batch = config.train.global_batch, .micro_batch = config.train.micro_batch};
}

// Losses of a few steps, then their gradient norms.
std::vector<double> train(const RunConfig& config, const ParallelStrategy& strategy, const Dataset& dataset,
                          at::Device device, World& world) {
  const auto run_steps = [&](Trainer& trainer) {
    std::vector<double> losses, norms;
    for (int64_t step = 0; step < steps; ++step) {
      const StepRecord record = trainer.step();
      losses.push_back(record.loss);
      norms.push_back(record.grad_norm);
    }
    world.everyone().barrier();
    losses.insert(losses.end(), norms.begin(), norms.end());
    return losses;
  };
  return with_trainer(std::make_unique<Trainer>(config, in(strategy, config), dataset, device, world), run_steps);
}

// Results of rank 0 alone, sent to all ranks.
std::vector<double> train_alone(const RunConfig& config, const Dataset& dataset, at::Device device, World& world) {
  std::vector<double> values(2 * steps);
  if (world.rank() == 0) {
    const std::unique_ptr<World> alone = single_rank_world();
    values = train(config, {}, dataset, device, *alone);
  }
  world.everyone().broadcast(values.data(), static_cast<int64_t>(values.size()), DataType::float64, 0);
  return values;
}

bool same_bits(const std::vector<double>& a, const std::vector<double>& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                    [](double x, double y) { return std::bit_cast<uint64_t>(x) == std::bit_cast<uint64_t>(y); });
}

// Describes the first difference; empty if there is none.
std::string compare(const std::vector<double>& found, const std::vector<double>& expected, double& most) {
  std::string failure;
  for (size_t i = 0; i < found.size(); ++i) {
    const bool is_loss = i < steps;
    const double difference = std::abs(found[i] / expected[i] - 1);
    if (is_loss) most = std::max(most, difference);
    if (difference <= (is_loss ? most_of_loss : most_of_norm) || !failure.empty()) continue;  // a NaN fails
    failure = concat(is_loss ? "loss" : "gradient norm", " of step ", 1 + i % steps, " is ", found[i], ", expected ",
                     expected[i], " as rank 0 alone has it");
  }
  return failure;
}

}  // namespace

std::vector<LayoutCheck> check_layouts(const std::string& corpus, at::Device device, TimeLimit& limit, World& world) {
  const RunConfig config = config_for(corpus, world.size());
  const Dataset dataset = open_data(config);
  const std::vector<double> expected = train_alone(config, dataset, device, world);
  std::vector<LayoutCheck> checks;
  for (const ParallelStrategy& layout : chosen_layouts(world.size())) {
    if (limit.is_over(share_of_speeds)) break;
    std::vector<double> plain;
    for (const ParallelStrategy& strategy : {layout, other_form(layout, config)}) {
      const std::vector<double> found = train(config, strategy, dataset, device, world);
      LayoutCheck check{.strategy = strategy, .losses = {found.begin(), found.begin() + steps}};
      check.failure = compare(found, expected, check.relative_difference);
      // NCCL determines its own order of sums. Without sums over ranks there is no order.
      check.bitwise = !plain.empty() && (device.is_cpu() || layout.ranks_per_stage() == 1);
      if (check.failure.empty() && check.bitwise && !same_bits(found, plain)) {
        check.failure = concat("losses or norms are not those of the layout with 1f1b and without ZeRO and ",
                               "recomputation to the bit, such as ", found[0], " and ", plain[0]);
      }
      if (plain.empty()) plain = found;
      checks.push_back(std::move(check));
    }
  }
  return checks;
}

std::vector<RelayoutCheck> check_relayouts(const std::string& corpus, at::Device device, TimeLimit& limit,
                                           World& world) {
  RunConfig config = config_for(corpus, world.size());
  config.adapt.policy = PolicyKind::script;  // without a policy the state would be in each rank's private memory
  config.adapt.verify = true;
  const Dataset dataset = open_data(config);
  std::vector<ParallelStrategy> layouts = chosen_layouts(world.size());
  for (size_t i = 1; i < layouts.size(); i += 2) layouts[i] = other_form(layouts[i], config);
  const ParallelStrategy first = layouts.front();
  layouts.erase(layouts.begin());
  if (!layouts.empty()) layouts.push_back(first);
  std::vector<RelayoutCheck> checks;
  RelayoutCheck check;
  const auto tour = [&](Trainer& trainer) {
    trainer.step();
    for (const ParallelStrategy& layout : layouts) {
      if (limit.is_over(share_of_speeds)) break;
      check = {};
      check.report.from = trainer.configuration();
      check.report.to = in(layout, config);
      check.report = change_configuration(trainer, world, check.report.to);
      if (check.report.outcome != SwitchReport::Outcome::moved) check.failure = check.report.reason;
      checks.push_back(check);
    }
    world.everyone().barrier();
  };
  auto start = std::make_unique<Trainer>(config, in(first, config), dataset, device, world);
  try {
    with_trainer(std::move(start), tour);
  } catch (const InternalError& error) {
    // If one rank fails, the comparison is impossible on all ranks, because the hash is a sum over all ranks.
    check.failure = error.what();
    checks.push_back(check);
  }
  return checks;
}

}  // namespace copus
