// Iterates over divisors of the number of ranks, so that the product of the degrees is always right. infeasible_reason
// judges only these candidates, because it is slow: it writes sentences.
#include "copus/description/search_space.h"

#include <algorithm>
#include <limits>
#include <utility>

namespace copus {

namespace {

template <class Value>
std::vector<Value> each_once(std::vector<Value> values) {
  std::sort(values.begin(), values.end());
  values.erase(std::unique(values.begin(), values.end()), values.end());
  return values;
}

std::vector<int64_t> divisors(int64_t number, int64_t largest) {
  std::vector<int64_t> found;
  for (int64_t candidate = 1; candidate <= std::min(number, largest); ++candidate) {
    if (number % candidate == 0) found.push_back(candidate);
  }
  return found;
}

// Returns 1, 2, 4, ... up to `largest`.
std::vector<int64_t> powers_of_two(int64_t largest) {
  std::vector<int64_t> powers;
  for (int64_t power = 1; power <= largest; power *= 2) powers.push_back(power);
  return powers;
}

class Enumeration {
 public:
  Enumeration(const ModelDescription& model, int64_t sequence_length, SearchSpace space)
      : model_(model), sequence_length_(sequence_length), space_(std::move(space)) {
    space_.global_batches = each_once(space_.global_batches);
    space_.micro_batches = each_once(space_.micro_batches);
    space_.schedules = each_once(space_.schedules);
    space_.virtual_stages = each_once(space_.virtual_stages);
    space_.recomputes = each_once(space_.recomputes);
    space_.sequence_parallel = each_once(space_.sequence_parallel);
    space_.zero_stages = each_once(space_.zero_stages);
    space_.reshard_after_forward = each_once(space_.reshard_after_forward);
    space_.zero_replicas = each_once(space_.zero_replicas);
    if (!space_.global_batches.empty()) largest_batch_ = space_.global_batches.back();
  }

  std::vector<Configuration> run() {
    const int64_t most_tensor_parallel =
        space_.max_tensor_parallel > 0 ? space_.max_tensor_parallel : std::numeric_limits<int64_t>::max();
    for (const int64_t t : divisors(space_.world_size, std::min(model_.num_heads, most_tensor_parallel))) {
      if (!is_allowed({.tensor_parallel = t})) continue;
      for (const int64_t p : divisors(space_.world_size / t, model_.num_layers)) {
        const int64_t d = space_.world_size / t / p;
        if (d <= largest_batch_) add_schedules({.data_parallel = d, .tensor_parallel = t, .pipeline_parallel = p});
      }
    }
    return std::move(found_);
  }

 private:
  // Returns whether the model allows the strategy with its smallest batches.
  bool is_allowed(const ParallelStrategy& strategy) const {
    const int64_t batch = strategy.data_parallel * strategy.pipeline_parallel;
    return !infeasible_reason(model_, {strategy, batch, 1}, sequence_length_, space_.interleaved_rounds);
  }

  void add_schedules(ParallelStrategy strategy) {
    if (strategy.pipeline_parallel == 1) {
      strategy.schedule = PipelineSchedule::one_f_one_b;
      return add_options(strategy);
    }
    for (const PipelineSchedule schedule : space_.schedules) {
      strategy.schedule = schedule;
      const bool interleaved = schedule == PipelineSchedule::interleaved_1f1b;
      for (const int64_t v : interleaved ? virtual_stages(strategy.pipeline_parallel) : std::vector<int64_t>{1}) {
        strategy.virtual_stages = v;
        if (is_allowed(strategy)) add_options(strategy);
      }
    }
  }

  std::vector<int64_t> virtual_stages(int64_t pipeline_parallel) const {
    if (!space_.virtual_stages.empty()) return space_.virtual_stages;
    const int64_t most = model_.num_layers / pipeline_parallel;
    std::vector<int64_t> values = powers_of_two(most);
    if (model_.num_layers % pipeline_parallel == 0) {
      for (const int64_t even : divisors(most, most)) values.push_back(even);
    }
    return each_once(std::move(values));
  }

  void add_options(ParallelStrategy strategy) {
    const std::vector<bool> no_sequence_parallel{false};
    const std::vector<int64_t> no_zero{0};
    for (const Recompute recompute : space_.recomputes) {
      strategy.recompute = recompute;
      for (const bool shared : strategy.tensor_parallel > 1 ? space_.sequence_parallel : no_sequence_parallel) {
        strategy.sequence_parallel = shared;
        for (const int64_t zero_stage : strategy.data_parallel > 1 ? space_.zero_stages : no_zero) {
          strategy.zero_stage = zero_stage;
          add_ways_to_share(strategy);
        }
      }
    }
  }

  // Excludes one copy per rank, which would not shard anything.
  std::vector<int64_t> zero_replicas(const ParallelStrategy& strategy) const {
    std::vector<int64_t> values;
    for (const int64_t replicas : space_.zero_replicas) {
      const bool shares = strategy.data_parallel % replicas == 0 && replicas < strategy.data_parallel;
      if (strategy.zero_stage > 0 && shares) values.push_back(replicas);
    }
    return values.empty() ? std::vector<int64_t>{1} : values;
  }

  void add_ways_to_share(ParallelStrategy strategy) {
    const std::vector<bool> again{true};
    for (const int64_t replicas : zero_replicas(strategy)) {
      strategy.zero_replicas = replicas;
      for (const bool reshards : strategy.zero_stage == 3 ? space_.reshard_after_forward : again) {
        strategy.reshard_after_forward = reshards;
        add_batches(strategy);
      }
    }
  }

  void add_batches(const ParallelStrategy& strategy) {
    const int64_t unit = smallest_global_batch(strategy, 1, space_.interleaved_rounds);
    for (const int64_t global_batch : space_.global_batches) {
      if (global_batch % unit != 0) continue;
      const auto add = [&](int64_t micro_batch) {
        if (micro_batch < 1 || global_batch / unit % micro_batch != 0) return;
        const Configuration configuration{strategy, global_batch, micro_batch};
        if (infeasible_reason(model_, configuration, sequence_length_, space_.interleaved_rounds)) return;
        if (!space_.allows || space_.allows(configuration)) found_.push_back(configuration);
      };
      if (space_.micro_batches.empty()) {
        for (int64_t micro_batch = 1; micro_batch <= global_batch / unit; micro_batch *= 2) add(micro_batch);
      } else {
        for (const int64_t micro_batch : space_.micro_batches) add(micro_batch);
      }
    }
  }

  const ModelDescription& model_;
  int64_t sequence_length_;
  SearchSpace space_;
  int64_t largest_batch_ = 0;
  std::vector<Configuration> found_;
};

}  // namespace

std::vector<Configuration> enumerate(const ModelDescription& model, int64_t sequence_length, const SearchSpace& space) {
  return Enumeration(model, sequence_length, space).run();
}

}  // namespace copus
