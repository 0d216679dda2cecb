// Holds the result of `copus plan`: for each of several global batches, the fastest configuration of each layout of a
// model on a cluster; and the batches between which the fastest layout changes.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "copus/description/search_space.h"
#include "copus/performance/measured/table.h"
#include "copus/plan/planned_system.h"

namespace copus {

struct PlanQuestion {
  std::string model_name;  // names of model and cluster, for people
  std::string cluster_name;
  ModelDescription model;
  ClusterDescription cluster;
  PlannedSystem program = PlannedSystem::copus;  // the program that will train
  TrainingSystem system;                         // the program's properties in `precision`
  std::string precision;                         // "bf16" or "fp32"
  int64_t sequence_length = 0;
  int64_t tokens = 0;  // of the whole training, to compute its duration; 0: not asked
  SearchSpace space;   // with the number of GPUs as world_size, and ascending global_batches
  Knowledge knowledge;

  // Everything that the program can run on these GPUs with these batches, including options that `space` excludes.
  SearchSpace whole_space() const;

  // The bytes that each rank of the job may use; 0: unknown.
  double memory_of_rank() const { return copus::memory_of_rank(cluster, space.world_size); }

  // The device that the job would run on, by its name, or the cluster's name if it has none.
  const std::string& device_name() const { return cluster.device.name.empty() ? cluster_name : cluster.device.name; }
};

struct PlannedConfiguration {
  Configuration configuration;
  MemoryPrediction memory;
  double seconds = 0;             // step time, corrected by measurements
  double relative_deviation = 0;  // one standard deviation of its logarithm
  StepTimeParts parts;            // also corrected, so that they add up to `seconds`
  int64_t measured_steps = 0;
  bool beyond_measured = false;  // whether it takes more nodes than the cluster's description has been validated on
  double tokens_per_second_per_gpu = 0;
  double model_flops_utilization = 0;  // NaN if the peak is unknown

  ParallelStrategy layout() const { return layout_of(configuration.strategy); }
};

// The cost of training in a configuration: steps only, without evaluations, checkpoints or interruptions.
struct TrainingTime {
  double steps = 0;
  double days = 0;
  double gpu_hours = 0;
};
TrainingTime training_time(const PlanQuestion& question, const PlannedConfiguration& planned);

// A step's time in the format of tables: "5.31 ms", "362 ms", "16.75 s", "3510 s".
std::string seconds_in_words(double seconds);

PlannedConfiguration planned(const TableCell& cell, const PlanQuestion& question);

struct BatchPlan {
  int64_t global_batch = 0;
  std::vector<PlannedConfiguration> layouts;  // each layout at its fastest, sorted by time; empty if nothing fits
};

struct Plan {
  int64_t configurations = 0;  // number that fit, over all batches
  int64_t too_large = 0;       // number that do not fit
  std::vector<BatchPlan> batches;
};

// Throws UserError if nothing fits at any of the batches; the message names the smallest changes that would help.
Plan make_plan(const PlanQuestion& question);

// Two consecutive batches with different fastest layouts.
struct Crossover {
  int64_t last_batch = 0;   // the last batch for which `from` is the fastest layout
  int64_t first_batch = 0;  // the first batch for which `to` is the fastest layout
  ParallelStrategy from;
  ParallelStrategy to;
};
std::vector<Crossover> crossovers(const Plan& plan);

}  // namespace copus
