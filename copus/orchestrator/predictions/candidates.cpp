#include "copus/orchestrator/predictions/candidates.h"

#include <algorithm>
#include <map>
#include <utility>

#include "copus/base/error.h"
#include "copus/config/step_schedule.h"
#include "copus/orchestrator/predictions/step_time_learner.h"

namespace copus {

namespace {

template <class Value>
std::vector<Value> chosen(const std::vector<Value>& listed, Value own) {
  std::vector<Value> values = listed;
  if (std::find(values.begin(), values.end(), own) == values.end()) values.push_back(own);
  return values;
}

// Adds `base`, its doublings and its whole halvings, from `smallest` to `largest`.
void add_scaled(std::vector<int64_t>& batches, int64_t base, int64_t smallest, int64_t largest) {
  int64_t batch = base;
  while (batch % 2 == 0 && batch / 2 >= smallest) batch /= 2;
  for (; batch <= largest; batch *= 2) batches.push_back(batch);
}

// Returns the range of batches for a job whose [adapt] names no batches. The smallest is a quarter of the job's own
// batch or, if smaller, of its learning rate's reference batch. The largest is 64 times the job's own batch.
struct BatchRange {
  explicit BatchRange(const JobConfig& job)
      : reference(reference_batch_of(job)),
        smallest(std::max<int64_t>(1, std::min(job.train.global_batch, reference) / 4)),
        largest(64 * job.train.global_batch) {}

  int64_t reference, smallest, largest;
};

// Adds the job's own batch and, for the policy "steps", the batches of its schedule.
std::vector<int64_t> with_certain_batches(std::vector<int64_t> batches, const JobConfig& job) {
  batches = chosen(batches, job.train.global_batch);
  if (job.adapt.policy != PolicyKind::steps) return batches;
  for (const auto& [begin, batch] : parse_step_schedule(job.adapt.schedule, job.train.sequence_length)) {
    batches = chosen(batches, batch);
  }
  return batches;
}

}  // namespace

// Scales the two batches by factors of two alone: other batches may not consist of whole micro-batches on all ranks.
std::vector<int64_t> batches_of(const AdvisedConfig& config) {
  std::vector<int64_t> batches = config.adapt.global_batches;
  if (batches.empty()) {
    const BatchRange range(config);
    add_scaled(batches, config.train.global_batch, range.smallest, range.largest);
    add_scaled(batches, range.reference, range.smallest, range.largest);
    std::sort(batches.begin(), batches.end());
    batches.erase(std::unique(batches.begin(), batches.end()), batches.end());
  }
  return with_certain_batches(std::move(batches), config);
}

SearchSpace search_space_of(const RunConfig& config, std::optional<int64_t> ranks) {
  const Configuration own = configuration_of(config);
  const AdaptConfig& adapt = config.adapt;
  SearchSpace space;
  space.world_size = ranks.value_or(own.strategy.world_size());
  space.global_batches = adapt.global_batches;
  if (space.global_batches.empty()) {
    const BatchRange range(config);
    for (int64_t batch = range.smallest; batch <= range.largest; batch *= 2) space.global_batches.push_back(batch);
  }
  space.global_batches = with_certain_batches(std::move(space.global_batches), config);
  space.micro_batches = adapt.micro_batches;
  if (!space.micro_batches.empty()) space.micro_batches = chosen(space.micro_batches, own.micro_batch);
  space.schedules = chosen(adapt.schedules, own.strategy.schedule);
  space.virtual_stages = chosen(adapt.virtual_stages, own.strategy.virtual_stages);
  space.recomputes = chosen(adapt.recomputes, own.strategy.recompute);
  space.sequence_parallel = chosen(adapt.sequence_parallel, own.strategy.sequence_parallel);
  space.zero_stages = chosen(adapt.zero_stages, own.strategy.zero_stage);
  if (adapt.zero_stages.empty()) space.reshard_after_forward = {own.strategy.reshard_after_forward};
  space.zero_replicas = {own.strategy.zero_replicas};
  // Tensor parallelism across nodes costs two all-reduces a layer over the network, so it is rarely fast enough to be
  // considered. The degree of the run's own configuration stays possible.
  space.max_tensor_parallel = adapt.max_tensor_parallel > 0
                                  ? adapt.max_tensor_parallel
                                  : std::max(config.cluster.description.ranks_per_node, own.strategy.tensor_parallel);
  return space;
}

PerformanceTable predicted_table(const RunConfig& config, const Knowledge& knowledge, std::optional<int64_t> ranks) {
  if (!is_speed_known(config.cluster.as_timed())) {
    throw UserError(concat("adapt.policy \"", to_string(config.adapt.policy), "\" compares configurations by their ",
                           "step times, and nothing says how fast the cluster computes: describe its device in ",
                           "[cluster] (matmul_teraflops, as `copus profile` measures it), or set adapt.policy to ",
                           "\"none\""));
  }
  const PredictedJob job = predicted_job(config);
  return make_table(job.model, job.sequence_length, config.cluster.as_timed(), training_system_of(config),
                    search_space_of(config, ranks), knowledge);
}

std::vector<Candidate> candidates_of(const PerformanceTable& table, const Candidate& current, const JobConfig& config) {
  const bool measures = traits_of(config.adapt.policy).reads_noise_scale;
  const auto is_measured_rarely = [&](const Configuration& configuration) {
    return config.noise_scale.split_interval > 1 && configuration.strategy.data_parallel == 1 &&
           configuration.num_microbatches() == 1;
  };
  std::map<std::pair<ParallelStrategy, int64_t>, bool> measured_well;  // for layouts without data parallelism
  if (measures) {
    for (const TableCell& cell : table.cells) {
      const Configuration& configuration = cell.configuration;
      if (configuration.strategy.data_parallel > 1) continue;
      measured_well[{configuration.strategy, configuration.global_batch}] |= !is_measured_rarely(configuration);
    }
  }
  const auto leaves_blind = [&](const Configuration& configuration) {
    if (configuration.global_batch < 2) return true;
    return is_measured_rarely(configuration) && measured_well[{configuration.strategy, configuration.global_batch}];
  };

  std::vector<Candidate> candidates;
  candidates.reserve(table.cells.size() + 1);
  bool has_current = false;
  for (const TableCell& cell : table.cells) {
    const bool is_current = cell.configuration == current.configuration;
    if (measures && !is_current && leaves_blind(cell.configuration)) continue;
    has_current |= is_current;
    candidates.push_back(
        {cell.configuration, cell.step.seconds, cell.step.relative_deviation, cell.measured_steps, false, cell.parts});
  }
  if (!has_current) candidates.push_back(current);
  return candidates;
}

}  // namespace copus
