#include "copus/workshop/bench/one_rank_bench.h"

#include <algorithm>
#include <memory>
#include <optional>
#include <utility>

#include "copus/base/error.h"
#include "copus/comm/shared_memory/single_rank_world.h"
#include "copus/description/configuration_text.h"
#include "copus/model/memory/caching_allocator.h"
#include "copus/train/run/device.h"
#include "copus/workshop/measuring_run.h"
#include "copus/workshop/memory_file.h"
#include "copus/workshop/profile/cell_steps.h"

namespace copus {

namespace {

constexpr int64_t letters_to_train_on = 1 << 20;

// A group whose other members do not exist. Nothing is sent, and buffers keep their contents.
class AbsentGroup final : public Communicator {
 public:
  AbsentGroup(const std::vector<int64_t>& ranks, int64_t member) : Communicator(ranks, member) {}

 private:
  Work do_start(const Operation& /*operation*/) override { return {}; }
  void do_run(const Operation& /*operation*/) override {}
};

class AbsentWorld final : public World {
 public:
  explicit AbsentWorld(int64_t size) : World(0, size, nullptr) {}
  Health& health() override { return alone_->health(); }
  RankClock& clock() override { return alone_->clock(); }

 private:
  std::unique_ptr<Communicator> make_group(const std::vector<int64_t>& ranks, int64_t member) override {
    return std::make_unique<AbsentGroup>(ranks, member);
  }

  const std::unique_ptr<World> alone_ = single_rank_world();
};

}  // namespace

OneRankResult measure_one_rank(const StepBenchOptions& options, const ParallelStrategy& strategy, int64_t steps) {
  const MemoryFile corpus(random_letters(letters_to_train_on));
  RunConfig config = endless_run(options.model, corpus.path(), options.sequence_length);
  config.parallel = strategy;
  config.parallel.recompute = options.recompute;
  config.train.micro_batch = options.micro_batch;
  config.train.global_batch = options.micro_batch * options.micro_batches * strategy.data_parallel;
  config.execution.precision = options.precision;
  config.execution.threads = options.threads;
  config.execution.device = options.device;
  config.noise_scale.enabled = false;
  const std::string layout = to_string(strategy);
  if (strategy.pipeline_parallel > 1 || strategy.cuts_weights()) {
    throw UserError(concat("--as ", layout,
                           ": a rank of a pipeline, or with ZeRO-3, computes with what other ranks "
                           "send; expected p=1 and zero=0, 1 or 2"));
  }
  const Configuration configuration = configuration_of(config);
  if (const auto reason = infeasible_reason(options.model, configuration, options.sequence_length)) {
    throw UserError(concat("--as ", layout, ": ", *reason));
  }
  const at::Device device = find_device(options.device);
  use_device(device);
  install_caching_allocator();
  configure_aten(options.threads);
  AbsentWorld world(strategy.world_size());
  CellMeasurements measured = measure_steps(config, steps, device, world);
  std::sort(measured.step_seconds.begin(), measured.step_seconds.end());
  return {.precision = std::string(to_string(measured.precision)),
          .step_seconds = std::move(measured.step_seconds),
          .peak_memory_bytes = measured.peak_bytes};
}

}  // namespace copus
