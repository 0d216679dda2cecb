// Measures for `copus bench gns` how much longer a training step takes because it measures the gradient noise scale.
#pragma once

#include <cstdint>
#include <string>

#include "copus/base/numbers/quantile.h"
#include "copus/comm/world.h"
#include "copus/description/model_description.h"

namespace copus {

// The number of steps that form one comparison: with the probe, without, without, with.
inline constexpr int64_t probe_bench_turn = 4;

struct ProbeBenchOptions {
  ModelDescription model;
  int64_t sequence_length = 0;
  int64_t micro_batch = 0;    // sequences
  int64_t micro_batches = 0;  // of each rank: at least two if there is one rank; the first is measured
  std::string corpus;         // a text to train on, of at least one sequence
  int64_t steps = 0;          // number to measure, a multiple of 4, half of them with the probe; 0: for half a minute
};

struct ProbeBenchResult {
  int64_t steps = 0;                       // measured
  double seconds_off = 0, seconds_on = 0;  // medians of a step without and with the probe
  Quartiles overhead{};                    // time of a step with the probe / time of its neighbour without it - 1
  // The fraction of a step's time that the probe itself computes, on the rank where it is largest. This fraction is
  // less noisy than the difference of step times, but lacks the probe's effects on messages and caches.
  double probe_fraction = 0;
};

// Trains with one thread per rank and data parallelism over all ranks of `world`, and measures the ranks' gradients.
// Steps with and without the probe alternate (on, off, off, on), so that a machine whose speed drifts affects both
// equally. Every rank calls this; the result is from rank 0's clock.
ProbeBenchResult measure_probe(const ProbeBenchOptions& options, World& world);

}  // namespace copus
