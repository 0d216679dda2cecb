// Measures for `copus bench step` how fast one training step runs on this machine, and where its time goes.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "copus/config/run_config.h"

namespace copus {

struct StepBenchOptions {
  ModelDescription model;
  int64_t sequence_length = 512;
  int64_t micro_batch = 4;
  int64_t micro_batches = 1;  // accumulated in one step
  Precision precision = Precision::automatic;
  Recompute recompute = Recompute::none;
  std::string device = "cpu";
  double device_peak_flops_per_second = 0;  // from its data sheet; 0: unknown
  int64_t threads = 0;                      // 0: all cores
};

// Seconds of one part of a step, and a lower bound for these seconds. The bound assumes matrix products at the measured
// peak, and all other operations at the measured memory bandwidth, with every operand moved once. A small model that
// stays in the caches can be faster.
struct PartReport {
  double seconds;
  double floor_seconds;
};

struct StepBenchResult {
  int64_t steps;
  double seconds_per_step, fastest_seconds, slowest_seconds;  // the first is the median
  double tokens_per_second;
  double gflops;              // training_flops_per_token * tokens/s / 1e9
  double matmul_peak_gflops;  // the best of several square products in the compute dtype: 2048 wide, 8192 on a GPU
  double mfu;                 // gflops / matmul_peak_gflops
  double mfu_uniform;         // gflops / the data sheet's peak, as in published comparisons; NaN: unknown
  double memory_bandwidth;    // bytes/s of a large copy, reads plus writes
  int64_t peak_memory_bytes;  // live tensors on the device at the peak of a step
  PartReport matmul, attention, elementwise, optimizer;
  double other_seconds;
  std::string precision;
};

// A model with random weights and random tokens, ready for steps.
class StepBench {
 public:
  explicit StepBench(const StepBenchOptions& options);
  ~StepBench();  // releases the device's memory

  // Runs steps (AdamW with clipping, as in training) and returns their median seconds.
  double run(int64_t steps);

  // Returns the whole report over `steps` steps, after one warm-up step. On a GPU, another `steps` steps with events
  // measure the parts. The seconds of the parts and `other` add up to the seconds of a step with these events.
  StepBenchResult measure(int64_t steps);

 private:
  struct Implementation;
  std::unique_ptr<Implementation> implementation_;
};

}  // namespace copus
