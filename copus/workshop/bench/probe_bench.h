// What it costs a training step to measure the gradient noise scale: what `copus bench gns` prints.
#pragma once

#include <cstdint>
#include <string>

#include "copus/base/quantile.h"
#include "copus/comm/world.h"
#include "copus/description/model_description.h"

namespace copus {

// Steps that are compared: with the probe, without, without, with.
inline constexpr int64_t probe_bench_turn = 4;

struct ProbeBenchOptions {
  ModelDescription model;
  int64_t sequence_length = 0;
  int64_t micro_batch = 0;    // sequences
  int64_t micro_batches = 0;  // of each rank: at least two on one rank, of which the first is measured
  std::string corpus;         // a text to train on, of one sequence at least
  int64_t steps = 0;  // to measure, half of them with the probe: a multiple of 4; 0: as many as fit in half a minute
};

struct ProbeBenchResult {
  int64_t steps = 0;                       // measured
  double seconds_off = 0, seconds_on = 0;  // of a step without and with the probe: medians
  Quartiles overhead{};                    // of a step with the probe over its neighbour without it, less 1
  // The probe's own computing, as a share of the steps with it, on the rank where it is largest: less noisy, but
  // without what it adds to the messages and takes from the caches.
  double probe_fraction = 0;
};

// Trains with one thread a rank and data parallelism over all ranks of `world`, whose gradients are measured; steps
// with and without the probe taking turns: on, off, off, on, so that a machine that grows slower or faster is so for
// both. Every rank calls it; the result is that of rank 0's clock.
ProbeBenchResult measure_probe(const ProbeBenchOptions& options, World& world);

}  // namespace copus
