#include "copus/simulate/job.h"

#include <cmath>
#include <tuple>

#include "copus/base/error.h"
#include "copus/orchestrator/candidates.h"
#include "copus/orchestrator/step_time_learner.h"

namespace copus {

namespace {

// The number of factors that the residual is made of.
constexpr double residual_factors = 5;

class Residuals {
 public:
  Residuals(double deviation, uint64_t seed) : deviation_(deviation / std::sqrt(residual_factors)), seed_(seed) {}

  double of(const Configuration& configuration) {
    const ParallelStrategy& strategy = configuration.strategy;
    ParallelStrategy options = strategy;
    options.data_parallel = options.tensor_parallel = options.pipeline_parallel = 1;
    return of("d", strategy.data_parallel) + of("t", strategy.tensor_parallel) + of("p", strategy.pipeline_parallel) +
           of("b", configuration.micro_batch) + of(to_string(options), 0);
  }

 private:
  double of(const std::string& property, int64_t value) {
    const std::string name = concat("residual ", property, " ", value);
    const auto [known, is_new] = drawn_.try_emplace(name);
    if (is_new) known->second = deviation_ * Draws(seed_, name).normal();
    return known->second;
  }

  double deviation_;
  uint64_t seed_;
  std::map<std::string, double> drawn_;
};

}  // namespace

SimulatedJob make_simulated_job(const std::string& name, const RunConfig& config,
                                const std::vector<int64_t>& first_batches) {
  const auto believed = std::make_shared<const PerformanceTable>(
      make_table(config.model, config.train.sequence_length, config.cluster.as_timed(), training_system_of(config),
                 search_space_of(config), Knowledge()));
  for (const int64_t batch : first_batches) fastest_believed(*believed, batch);
  return {name, config, first_batches, believed};
}

const TableCell& fastest_believed(const PerformanceTable& believed, int64_t global_batch) {
  const TableCell* best = nullptr;
  for (const TableCell& cell : believed.cells) {
    if (cell.configuration.global_batch != global_batch) continue;
    if (best == nullptr || cell.parts.total() < best->parts.total()) best = &cell;
  }
  if (best == nullptr) throw UserError(concat("no configuration with a global batch of ", global_batch, " fits"));
  return *best;
}

std::map<Configuration, double> draw_true_seconds(const PerformanceTable& believed, const StepTimeError& error,
                                                  uint64_t seed) {
  Draws draws(seed, "cluster");
  const double compute_error = error.compute * draws.normal();
  const double compute = std::exp(compute_error), bubble = std::exp(compute_error + error.bubble * draws.normal());
  const double tensor_links = std::exp(error.links * draws.normal());
  const double data_links = std::exp(error.links * draws.normal());
  Residuals residuals(error.residual, seed);
  std::map<Configuration, double> seconds;
  for (const TableCell& cell : believed.cells) {
    const StepTimeParts& parts = cell.parts;
    const double under_factors = compute * (parts.compute + parts.optimizer) +
                                 tensor_links * parts.tensor_communication + bubble * parts.bubble +
                                 data_links * parts.data_communication;
    seconds[cell.configuration] = under_factors * std::exp(residuals.of(cell.configuration));
  }
  return seconds;
}

}  // namespace copus
