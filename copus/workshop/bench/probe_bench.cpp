#include "copus/workshop/bench/probe_bench.h"

#include <algorithm>
#include <vector>

#include "copus/base/error.h"
#include "copus/base/process/monotonic_seconds.h"
#include "copus/data/dataset.h"
#include "copus/model/memory/caching_allocator.h"
#include "copus/train/run/device.h"
#include "copus/train/trainer/trainer.h"
#include "copus/workshop/measuring_run.h"

namespace copus {

namespace {

constexpr double usual_seconds = 30;

RunConfig config_of(const ProbeBenchOptions& options, const World& world) {
  RunConfig config = endless_run(options.model, options.corpus, options.sequence_length);
  config.train.micro_batch = options.micro_batch;
  config.train.global_batch = world.size() * options.micro_batches * options.micro_batch;
  config.parallel.data_parallel = world.size();
  return config;
}

class ProbeBench {
 public:
  ProbeBench(const RunConfig& config, const Dataset& dataset, World& world)
      : world_(world), trainer_(config, dataset, at::kCPU, world) {}

  // Seconds of one step of all ranks.
  double step(bool probe) {
    trainer_.measure_noise(probe);
    trainer_.trace_next_step();
    world_.everyone().barrier();
    const double begin = monotonic_seconds();
    const StepRecord record = trainer_.step();
    world_.everyone().barrier();
    const double seconds = monotonic_seconds() - begin;
    COPUS_CHECK(record.small_batch.has_value() == probe, "step ", record.step);
    return seconds;
  }

  // Seconds of all probes so far.
  double probe_seconds() const {
    double seconds = 0;
    for (const TimelineEvent& event : trainer_.events()) {
      if (event.name == "probe") seconds += event.end - event.begin;
    }
    return seconds;
  }

 private:
  World& world_;
  Trainer trainer_;
};

}  // namespace

ProbeBenchResult measure_probe(const ProbeBenchOptions& options, World& world) {
  COPUS_CHECK(options.steps % probe_bench_turn == 0 && (world.size() > 1 || options.micro_batches > 1), options.steps,
              " steps, ", world.size(), " ranks");
  install_caching_allocator();
  configure_aten(1, world.size());
  const RunConfig config = config_of(options, world);
  const Dataset dataset(config.data, config.train.sequence_length, config.model.vocab_size, config.execution.seed);
  ProbeBench bench(config, dataset, world);

  bench.step(true);  // a warm-up step, which touches new memory and does not count
  double step_seconds = bench.step(true);
  world.everyone().all_reduce(&step_seconds, 1, DataType::float64, Reduction::maximum);
  const auto fitting = static_cast<int64_t>(usual_seconds / step_seconds) / probe_bench_turn * probe_bench_turn;
  const int64_t steps = options.steps > 0 ? options.steps : std::max(probe_bench_turn, fitting);

  const double probe_seconds_before = bench.probe_seconds();
  std::vector<double> on, off, overhead;
  double all_on = 0;
  while (static_cast<int64_t>(on.size() + off.size()) < steps) {
    const bool on_first = on.size() % 2 == 0;
    const double first = bench.step(on_first);
    const double second = bench.step(!on_first);
    on.push_back(on_first ? first : second);
    off.push_back(on_first ? second : first);
    overhead.push_back(on.back() / off.back() - 1);
    all_on += on.back();
  }
  ProbeBenchResult result;
  result.steps = steps;
  result.seconds_on = quantile(on, 0.5);
  result.seconds_off = quantile(off, 0.5);
  result.overhead = quartiles(overhead);
  result.probe_fraction = (bench.probe_seconds() - probe_seconds_before) / all_on;
  world.everyone().all_reduce(&result.probe_fraction, 1, DataType::float64, Reduction::maximum);
  return result;
}

}  // namespace copus
