// How fast one training step runs on this machine, and where its time goes: what `copus bench step` prints.
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
  double device_peak_flops_per_second = 0;  // by its data sheet; 0: not known
  int64_t threads = 0;                      // 0: all cores
};

// Seconds of one part of a step, and the least it could take: matrix products at the measured peak, all else at the
// measured memory bandwidth, every operand moved once. A small model that stays in the caches can take less.
struct PartReport {
  double seconds;
  double floor_seconds;
};

struct StepBenchResult {
  int64_t steps;
  double seconds_per_step, fastest_seconds, slowest_seconds;  // the first is the median
  double tokens_per_second;
  double gflops;              // training_flops_per_token * tokens/s / 1e9
  double matmul_peak_gflops;  // the best of several products of squares in the compute dtype: 2048 wide, on a GPU 8192
  double mfu;                 // gflops / matmul_peak_gflops
  double mfu_uniform;         // gflops / the data sheet's peak, as published figures are compared; NaN: not known
  double memory_bandwidth;    // bytes/s of a large copy, read + written
  int64_t peak_memory_bytes;  // live tensors on the device at the highest point of a step
  PartReport matmul, attention, elementwise, optimizer;
  double other_seconds;
  std::string precision;
};

// A model with random weights, and random tokens, ready to be stepped.
class StepBench {
 public:
  explicit StepBench(const StepBenchOptions& options);
  ~StepBench();  // gives the device's memory back

  // Runs steps (AdamW with clipping, as in training) and returns the median of their seconds.
  double run(int64_t steps);

  // The whole report over that many steps, after one to warm up. On a GPU as many again are run for the parts, whose
  // seconds and `other` add up to those of a step with events in it.
  StepBenchResult measure(int64_t steps);

 private:
  struct Implementation;
  std::unique_ptr<Implementation> implementation_;
};

}  // namespace copus
