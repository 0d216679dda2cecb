// A small job for tests of simulated runs: four ranks on two nodes, some dozen candidates.
#pragma once

#include "copus/orchestrator/testing/synthetic_job.h"
#include "copus/simulate/scenario.h"

namespace copus {

inline SimulatedJob small_job() {
  RunConfig config = adapting_run();
  AdaptConfig& adapt = config.adapt;
  adapt = {};
  adapt.global_batches = {4, 8, 16, 32, 64};
  adapt.schedules = {PipelineSchedule::one_f_one_b};
  adapt.virtual_stages = {1};
  adapt.recomputes = {Recompute::none};
  adapt.sequence_parallel = {false};
  adapt.zero_stages = {0};
  adapt.interval_samples = 128;
  adapt.dwell_samples = 512;
  adapt.relayout_threshold = 0.03;
  // The links between the nodes are so slow that the fastest layout depends on the batch.
  config.cluster.description.flops_per_second = 1e11;
  config.cluster.description.between_nodes = {1e-4, 2e7};
  return make_simulated_job("small", config, {8, 16});
}

// The scenario's run under a policy with its default settings.
inline RunConfig under_policy(const Scenario& scenario, PolicyKind policy) {
  RunConfig config = scenario.config;
  config.adapt.policy = policy;
  return config;
}

}  // namespace copus
