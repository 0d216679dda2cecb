// A job that simulated runs train, and how long its steps take: as predicted from what is believed of the cluster, and
// in truth, which is another cluster with configurations of their own.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "copus/config/run_config.h"
#include "copus/performance/table.h"
#include "copus/simulate/draws.h"

namespace copus {

// What scenarios have in common: a model on a cluster, with candidates. The same table serves all of them.
struct SimulatedJob {
  std::string name;
  RunConfig config;                    // with the candidates in [adapt]; its batch and layout are those of one of them
  std::vector<int64_t> first_batches;  // those that scenarios may begin with, of adapt.global_batches
  std::shared_ptr<const PerformanceTable> believed;  // of all candidates
};

// Makes a job of a configuration whose adapt.global_batches and other lists name its candidates, with every option that
// one of them may have (none but adapt.micro_batches is empty), and whose cluster's speed is known. Throws UserError
// where a first batch has no configuration that fits.
SimulatedJob make_simulated_job(const std::string& name, const RunConfig& config,
                                const std::vector<int64_t>& first_batches);

// Returns the cell of the fastest configuration at this batch, as the plan would begin.
const TableCell& fastest_believed(const PerformanceTable& believed, int64_t global_batch);

// How wrong the belief is: standard deviations of logarithms, and a tail.
struct StepTimeError {
  double compute = 0.4;    // of one factor on computing, as a cluster file of another machine of the kind has it
  double links = 0.5;      // of a factor each on tensor-parallel and on data-parallel communication
  double bubble = 0.3;     // by which the bubble's factor deviates from that of computing
  double residual = 0.05;  // of what single configurations deviate beyond these, all its parts together
  double stalled = 0.1;    // share of the pipelines that something stalls which the prediction does not know of
};

// Draws the true seconds of every cell. The residual is a product of factors that each degree d, t and p, each size of
// micro-batch and the strategy's other options have for themselves, and one of the strategy with its micro-batch,
// whatever the global batch. Its composition, and the tail of stalled pipelines (p > 1), are those of published runs
// (docs/decisions/simulate.md).
std::map<Configuration, double> draw_true_seconds(const PerformanceTable& believed, const StepTimeError& error,
                                                  uint64_t seed);

}  // namespace copus
