#include "copus/orchestrator/controller/regrouping.h"

#include <algorithm>
#include <limits>
#include <tuple>
#include <utility>
#include <vector>

#include "copus/base/error.h"
#include "copus/description/configuration_fields.h"
#include "copus/description/search_space.h"
#include "copus/orchestrator/predictions/candidates.h"
#include "copus/orchestrator/predictions/step_time_learner.h"
#include "copus/performance/memory.h"
#include "copus/performance/step_time.h"

namespace copus {

namespace {

// Lists the configurations of one global batch that fit the memory. Its memory model caches what they have in common.
class Fitting {
 public:
  Fitting(const RunConfig& config, int64_t global_batch, std::function<bool(const Configuration&)> is_wanted)
      : config_(config),
        global_batch_(global_batch),
        is_wanted_(std::move(is_wanted)),
        memory_(memory_model_of(config)) {}

  std::vector<Configuration> on(int64_t ranks) {
    const PredictedJob job = predicted_job(config_);
    SearchSpace space = search_space_of(config_, ranks);
    space.global_batches = {global_batch_};
    std::vector<Configuration> configurations = enumerate(job.model, job.sequence_length, space);
    const double available = memory_of_rank(config_.cluster.description, ranks);
    std::erase_if(configurations, [&](const Configuration& configuration) {
      if (!is_wanted_(configuration)) return true;
      return available > 0 && memory_.predict(configuration).parts.total() > available;
    });
    return configurations;
  }

 private:
  const RunConfig& config_;
  int64_t global_batch_;
  std::function<bool(const Configuration&)> is_wanted_;
  MemoryModel memory_;
};

std::optional<Configuration> fastest(const RunConfig& config, Fitting& fitting, int64_t ranks,
                                     const Knowledge& knowledge) {
  const PredictedJob job = predicted_job(config);
  StepTimeModel model(job.model, job.sequence_length, config.cluster.as_timed(), training_system_of(config));
  std::optional<Configuration> best;
  double least_seconds = std::numeric_limits<double>::infinity();
  for (int64_t used = ranks; used >= 1; --used) {
    for (const Configuration& configuration : fitting.on(used)) {
      const double seconds = knowledge.correct(configuration, model.predict(configuration)).seconds;
      if (seconds >= least_seconds) continue;
      least_seconds = seconds;
      best = configuration;
    }
  }
  return best;
}

// The difference between two configurations, the most important criterion first.
std::tuple<bool, bool, int64_t, int64_t> difference(const Configuration& before, const Configuration& after) {
  const ParallelStrategy &from = before.strategy, &to = after.strategy;
  int64_t options = 0;
  visit_strategy(
      [&](const ConfigurationField& field, const auto& one, const auto& other) {
        options += field.role != ConfigurationField::Role::degree && one != other ? 1 : 0;
      },
      from, to);
  return {from.tensor_parallel != to.tensor_parallel || from.pipeline_parallel != to.pipeline_parallel,
          before.micro_batch != after.micro_batch, after.num_microbatches(), options};
}

std::optional<Configuration> most_alike(const Configuration& current, Fitting& fitting, int64_t ranks) {
  for (int64_t used = ranks; used >= 1; --used) {
    const std::vector<Configuration> configurations = fitting.on(used);
    if (configurations.empty()) continue;
    return *std::min_element(configurations.begin(), configurations.end(),
                             [&](const Configuration& one, const Configuration& other) {
                               return difference(current, one) < difference(current, other);
                             });
  }
  return std::nullopt;
}

}  // namespace

std::optional<Configuration> configuration_for_ranks(const RunConfig& config, const Configuration& current,
                                                     int64_t ranks, const Knowledge& knowledge,
                                                     const std::function<bool(const Configuration&)>& is_preferred) {
  COPUS_CHECK(ranks >= 1, ranks);
  const auto choose = [&](const std::function<bool(const Configuration&)>& is_wanted) {
    Fitting fitting(config, current.global_batch, is_wanted);
    return is_speed_known(config.cluster.as_timed()) ? fastest(config, fitting, ranks, knowledge)
                                                     : most_alike(current, fitting, ranks);
  };
  const std::optional<Configuration> preferred = choose(is_preferred);
  return preferred ? preferred : choose([](const Configuration&) { return true; });
}

}  // namespace copus
