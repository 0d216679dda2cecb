#include "copus/simulate/job.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "copus/base/error.h"
#include "copus/orchestrator/predictions/candidates.h"
#include "copus/orchestrator/predictions/step_time_learner.h"

namespace copus {

namespace {

// The residual in draw_true_seconds is a product of factors. These constants are each factor's fraction of the
// residual's variance, fitted to published runs. share_of_its_own is the remaining fraction, for the factor of a
// strategy with its micro-batch.
constexpr std::array<double, mesh_axes.size()> share_of_degree = {0.20, 0.04, 0.05};  // as in mesh_axes
constexpr double share_of_micro_batch = 0.20, share_of_options = 0.04, share_of_its_own = 0.47;

// The logarithm of the factor by which a stall lengthens a pipeline's steps: its minimum, its mean excess over the
// minimum (exponentially distributed), and its maximum.
constexpr double least_stall = 0.3, mean_beyond = 1.5, greatest_stall = 3.5;

class Residuals {
 public:
  Residuals(const StepTimeError& error, uint64_t seed) : error_(error), seed_(seed) {}

  // Returns ln(factor) for a configuration's step time.
  double of(const Configuration& configuration) {
    const ParallelStrategy& strategy = configuration.strategy;
    ParallelStrategy options = strategy;
    const std::string own = concat(to_string(strategy), " b ", configuration.micro_batch);
    double common = 0;
    for (size_t i = 0; i < mesh_axes.size(); ++i) {
      common += of(concat(mesh_axes[i].symbol, " ", strategy.*mesh_axes[i].degree), share_of_degree[i]);
      options.*mesh_axes[i].degree = 1;
    }
    common += of(concat("b ", configuration.micro_batch), share_of_micro_batch);
    common += of(to_string(options), share_of_options);
    return common + of(own, share_of_its_own) + (strategy.pipeline_parallel > 1 ? stall_of(own) : 0);
  }

 private:
  double of(const std::string& property, double share) {
    const auto [known, is_new] = drawn_.try_emplace(property);
    if (is_new) known->second = error_.residual * std::sqrt(share) * Draws(seed_, "residual " + property).normal();
    return known->second;
  }

  double stall_of(const std::string& own) {
    const auto [known, is_new] = drawn_.try_emplace("stall " + own);
    if (is_new) {
      Draws draws(seed_, known->first);
      if (draws.uniform() < error_.stalled) {
        known->second = std::min(greatest_stall, least_stall - mean_beyond * std::log1p(-draws.uniform()));
      }
    }
    return known->second;
  }

  StepTimeError error_;
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
  Residuals residuals(error, seed);
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
