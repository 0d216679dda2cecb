// Makes the job of a simulated run, with predicted and true step times. The predicted times follow from the described
// cluster. The true times differ by a factor for the cluster and another factor for each configuration.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "copus/config/run_config.h"
#include "copus/performance/measured/table.h"
#include "copus/simulate/draws.h"

namespace copus {

// A model on a cluster, with candidates. All scenarios of the job share the performance table.
struct SimulatedJob {
  std::string name;
  RunConfig config;                    // lists the candidates in [adapt]; starts in one of their batches and layouts
  std::vector<int64_t> first_batches;  // the batches in which scenarios start, among adapt.global_batches
  std::shared_ptr<const PerformanceTable> believed;  // of all candidates
};

// Makes a job. `config` lists the candidates: adapt.global_batches and the other lists of [adapt] must contain every
// option that a candidate may have (only adapt.micro_batches may be empty). `first_batches` are the batches in which
// scenarios start. The cluster's description must include its speed. Throws UserError if no configuration fits for one
// of the first batches.
SimulatedJob make_simulated_job(const std::string& name, const RunConfig& config,
                                const std::vector<int64_t>& first_batches);

// Returns the table's cell for the fastest configuration at this batch, in which a planned run would start.
const TableCell& fastest_believed(const PerformanceTable& believed, int64_t global_batch);

// The errors of predictions: standard deviations of logarithms, and a tail.
struct StepTimeError {
  double compute = 0.4;    // of a common factor on computing, as between machines of one kind
  double links = 0.5;      // of two factors: on tensor-parallel and on data-parallel communication
  double bubble = 0.3;     // of the bubble's factor relative to that of computing
  double residual = 0.05;  // of each configuration's own factor, from all its parts together
  double stalled = 0.1;    // share of pipelines that stall for reasons the prediction ignores
};

// Draws the true step time, in seconds, of every configuration in `believed`. The true time is the predicted time times
// a residual, which does not depend on the global batch. The residual is a product of random factors: for each of d, t
// and p, for the micro-batch, for the strategy's other options, and for the strategy with its micro-batch. The
// variances of these factors, and the distribution of stalls in pipelines (p > 1), are fitted to published runs
// (docs/decisions/simulate.md).
std::map<Configuration, double> draw_true_seconds(const PerformanceTable& believed, const StepTimeError& error,
                                                  uint64_t seed);

}  // namespace copus
