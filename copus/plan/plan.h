// What `copus plan` finds out: the fastest configurations of a model on a cluster, layout by layout, for each of some
// global batches, and where the fastest layout changes between them.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "copus/description/search_space.h"
#include "copus/performance/table.h"

namespace copus {

struct PlanQuestion {
  std::string model_name;  // as they were asked for
  std::string cluster_name;
  ModelDescription model;
  ClusterDescription cluster;
  TrainingSystem system;
  std::string precision;  // "bf16" or "fp32"
  int64_t sequence_length = 0;
  SearchSpace space;  // its world_size is the number of GPUs; its global_batches ascend
  Knowledge knowledge;

  // Of what the job would run on: the device's name, or the cluster's where it has none.
  const std::string& device_name() const { return cluster.device.name.empty() ? cluster_name : cluster.device.name; }
};

struct PlannedConfiguration {
  Configuration configuration;
  MemoryPrediction memory;
  double seconds = 0;             // of a step, corrected by what was measured
  double relative_deviation = 0;  // one standard deviation of its logarithm
  StepTimeParts parts;            // corrected likewise: they add up to `seconds`
  int64_t measured_steps = 0;
  double tokens_per_second_per_gpu = 0;
  double model_flops_utilization = 0;  // NaN where the peak is not known

  ParallelStrategy layout() const { return layout_of(configuration.strategy); }
};

// "5.31 ms", "362 ms", "16.75 s", "3510 s".
std::string seconds_in_words(double seconds);

PlannedConfiguration planned(const TableCell& cell, const PlanQuestion& question);

struct BatchPlan {
  int64_t global_batch = 0;
  std::vector<PlannedConfiguration> layouts;  // each at its fastest, the fastest first; empty where nothing fits
};

struct Plan {
  int64_t configurations = 0;  // that fit, over all batches
  int64_t too_large = 0;       // that do not
  std::vector<BatchPlan> batches;
};

// Throws UserError when nothing fits at any of the batches: with the smallest changes that make something fit.
Plan make_plan(const PlanQuestion& question);

// Between two batches that follow one another: the fastest layout is another.
struct Crossover {
  int64_t last_batch = 0;   // where `from` is the fastest
  int64_t first_batch = 0;  // where `to` is
  ParallelStrategy from;    // layouts
  ParallelStrategy to;
};
std::vector<Crossover> crossovers(const Plan& plan);

}  // namespace copus
