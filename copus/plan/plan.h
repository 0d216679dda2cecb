// What `copus plan` finds out: the fastest configurations of a model on a cluster, layout by layout, for each of some
// global batches, and where the fastest layout changes between them.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "copus/description/search_space.h"
#include "copus/performance/table.h"
#include "copus/plan/planned_system.h"

namespace copus {

struct PlanQuestion {
  std::string model_name;  // what to call model and cluster
  std::string cluster_name;
  ModelDescription model;
  ClusterDescription cluster;
  PlannedSystem program = PlannedSystem::copus;  // what is to train, and
  TrainingSystem system;                         // what it does in this precision
  std::string precision;                         // "bf16" or "fp32"
  int64_t sequence_length = 0;
  int64_t tokens = 0;  // of the whole training, to say how long it takes; 0: not asked
  SearchSpace space;   // with the number of GPUs as world_size, and global_batches that ascend
  Knowledge knowledge;

  // All that the program can run on so many GPUs with these batches, whatever `space` leaves out of it.
  SearchSpace whole_space() const;

  // What the job would run on: the device's name, or the cluster's where it has none.
  const std::string& device_name() const { return cluster.device.name.empty() ? cluster_name : cluster.device.name; }
};

struct PlannedConfiguration {
  Configuration configuration;
  MemoryPrediction memory;
  double seconds = 0;             // a step's time, corrected by what was measured
  double relative_deviation = 0;  // one standard deviation of its logarithm
  StepTimeParts parts;            // corrected likewise, so that they add up to `seconds`
  int64_t measured_steps = 0;
  bool beyond_measured = false;  // more nodes than the cluster's description was compared with measurements on
  double tokens_per_second_per_gpu = 0;
  double model_flops_utilization = 0;  // NaN where the peak is not known

  ParallelStrategy layout() const { return layout_of(configuration.strategy); }
};

// What training takes at a configuration: steps alone, with no evaluation, checkpoint or interruption.
struct TrainingTime {
  double steps = 0;
  double days = 0;
  double gpu_hours = 0;
};
TrainingTime training_time(const PlanQuestion& question, const PlannedConfiguration& planned);

// A step's time as tables show it: "5.31 ms", "362 ms", "16.75 s", "3510 s".
std::string seconds_in_words(double seconds);

PlannedConfiguration planned(const TableCell& cell, const PlanQuestion& question);

struct BatchPlan {
  int64_t global_batch = 0;
  std::vector<PlannedConfiguration> layouts;  // each layout at its fastest, sorted by time; empty where nothing fits
};

struct Plan {
  int64_t configurations = 0;  // how many fit, over all batches
  int64_t too_large = 0;       // how many do not
  std::vector<BatchPlan> batches;
};

// Throws UserError where nothing fits at any of the batches, which names the smallest changes that would help.
Plan make_plan(const PlanQuestion& question);

// Two neighbouring batches with different fastest layouts.
struct Crossover {
  int64_t last_batch = 0;   // the last one for which `from` is the fastest layout
  int64_t first_batch = 0;  // the first one for which `to` is
  ParallelStrategy from;
  ParallelStrategy to;
};
std::vector<Crossover> crossovers(const Plan& plan);

}  // namespace copus
