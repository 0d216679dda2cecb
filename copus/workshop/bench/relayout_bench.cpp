#include "copus/workshop/bench/relayout_bench.h"

#include <c10/core/Device.h>

#include <cstring>
#include <memory>
#include <optional>
#include <utility>

#include "copus/base/error.h"
#include "copus/base/process/monotonic_seconds.h"
#include "copus/checkpoint/checkpoint.h"
#include "copus/comm/shared_memory/state_arena.h"
#include "copus/config/run_config.h"
#include "copus/data/dataset.h"
#include "copus/model/kernels/kernels.h"
#include "copus/model/memory/caching_allocator.h"
#include "copus/train/run/device.h"
#include "copus/train/run/run_checkpoints.h"
#include "copus/train/trainer/trainer.h"
#include "copus/workshop/measuring_run.h"

namespace copus {

namespace {

constexpr int64_t sequence_length = 16;

RunConfig config_of(const RelayoutBenchOptions& options) {
  RunConfig config = endless_run(options.model, options.corpus, sequence_length);
  config.train.micro_batch = options.from.micro_batch;
  config.train.global_batch = options.from.global_batch;
  config.noise_scale.enabled = false;
  config.adapt.policy = PolicyKind::script;  // without a policy the state would be in each rank's private memory
  return config;
}

struct RankOnDevice {
  at::Device device;
  std::unique_ptr<World> world;  // a world that can communicate device memory
};

RankOnDevice on_device(const RelayoutBenchOptions& options, std::unique_ptr<World> world) {
  const at::Device device = find_device(options.device, options.local_rank, world->size());
  return {device, connect_devices(std::move(world), device, default_wait_seconds)};
}

// Measures how fast all ranks together move the bytes of a switch, if each rank moves its bytes in one piece.
class CopyRate {
 public:
  virtual ~CopyRate() = default;

  // Every rank calls it. Returns bytes per second of all ranks together.
  double measure(World& world) {
    world.everyone().barrier();
    const double begin = monotonic_seconds();
    for (int64_t turn = 0; turn < turns; ++turn) copy();
    double seconds = monotonic_seconds() - begin;
    world.everyone().all_reduce(&seconds, 1, DataType::float64, Reduction::maximum);
    return static_cast<double>(world.size() * turns * bytes) / seconds;
  }

  // The bytes that the switch moved in the same way as this measurement.
  virtual int64_t bytes_of(const SwitchReport& report) const = 0;

 protected:
  static constexpr int64_t bytes = int64_t{64} << 20;

 private:
  static constexpr int64_t turns = 4;
  virtual void copy() = 0;
};

// Copies from the next rank's arena into this rank's arena. A switch moves every slice in this way, even within a rank.
class ArenaCopies final : public CopyRate {
 public:
  explicit ArenaCopies(World& world) : next_((world.rank() + 1) % world.size()), arena_(StateArena::join(world)) {
    if (!arena_) throw UserError("the ranks cannot read each other's memory");
    if (!arena_->prefault(2 * bytes)) throw UserError("there is no memory for two buffers of 64 MiB a rank");
    std::memset(arena_->mine(), 1, 2 * bytes);
    world.everyone().barrier();
    arena_->prefault_read(next_, 0, bytes);
  }

  int64_t bytes_of(const SwitchReport& report) const override { return report.bytes_copied; }

 private:
  void copy() override { std::memcpy(arena_->mine() + bytes, arena_->of(next_), bytes); }

  int64_t next_;
  std::unique_ptr<StateArena> arena_;
};

// Sends messages from this rank's device to the next rank's. Copies within a rank are much faster and are not measured.
class DeviceMessages final : public CopyRate {
 public:
  DeviceMessages(World& world, at::Device device)
      : world_(world),
        device_(device),
        outgoing_(kernels::zeros({bytes}, at::kByte, device)),
        incoming_(kernels::zeros({bytes}, at::kByte, device)) {
    copy();
  }

  int64_t bytes_of(const SwitchReport& report) const override { return report.bytes_received; }

 private:
  void copy() override {
    const int64_t size = world_.size(), rank = world_.rank();
    const Communicator::Message out = {(rank + 1) % size, outgoing_.data_ptr(), bytes};
    const Communicator::Message in = {(rank + size - 1) % size, incoming_.data_ptr(), bytes};
    world_.everyone().exchange({&out, 1}, {&in, 1});
    kernels::synchronize(device_);
  }

  World& world_;
  at::Device device_;
  at::Tensor outgoing_, incoming_;
};

std::unique_ptr<CopyRate> make_copy_rate(World& world, at::Device device) {
  if (device.is_cpu()) return std::make_unique<ArenaCopies>(world);
  return std::make_unique<DeviceMessages>(world, device);
}

MeasuredSwitch change(Trainer& trainer, const World& world, const Configuration& target) {
  const SwitchReport report = change_configuration(trainer, world, target);
  if (report.outcome != SwitchReport::Outcome::moved) {
    throw InternalError(concat("the change to ", to_string(target), " failed: ", report.reason));
  }
  return {.report = report};
}

}  // namespace

RelayoutBenchResult measure_relayout(const RelayoutBenchOptions& options, std::unique_ptr<World> host_world) {
  COPUS_CHECK(options.from.strategy.world_size() == host_world->size() &&
              options.to.strategy.world_size() == host_world->size());
  install_caching_allocator();
  configure_aten(1, host_world->size());
  const auto [device, owned_world] = on_device(options, std::move(host_world));
  World& world = *owned_world;
  const RunConfig config = config_of(options);
  const Dataset dataset(config.data, sequence_length, config.model.vocab_size, config.execution.seed);
  Trainer trainer(config, options.from, dataset, device, world);
  const std::unique_ptr<CopyRate> copies = make_copy_rate(world, device);
  RelayoutBenchResult result;
  trainer.step();
  for (int64_t round = 0; round < options.rounds; ++round) {
    for (auto* const switches : {&result.there, &result.back}) {
      MeasuredSwitch measured = change(trainer, world, switches == &result.there ? options.to : options.from);
      measured.copy_rate = copies->measure(world);
      measured.bound_bytes = copies->bytes_of(measured.report);
      switches->push_back(std::move(measured));
    }
  }
  world.everyone().barrier();
  result.decided_at = monotonic_seconds();
  std::optional<CheckpointFolder> folder;
  if (world.rank() == 0) folder.emplace(options.checkpoints, 1);
  RunCheckpoints checkpoints(options.checkpoints, folder ? &*folder : nullptr, world, default_wait_seconds);
  checkpoints.write(trainer, to_toml(config));
  checkpoints.finish();
  world.everyone().barrier();
  result.written_at = monotonic_seconds();
  return result;
}

double measure_restart(const RelayoutBenchOptions& options, std::unique_ptr<World> host_world) {
  install_caching_allocator();
  configure_aten(1, host_world->size());
  const auto [device, world] = on_device(options, std::move(host_world));
  const RunConfig config = config_of(options);
  const Dataset dataset(config.data, sequence_length, config.model.vocab_size, config.execution.seed);
  const auto directory = latest_checkpoint(options.checkpoints);
  COPUS_CHECK(directory.has_value(), options.checkpoints.string());
  const Checkpoint checkpoint(*directory);
  Trainer trainer(config, options.to, dataset, device, *world);
  trainer.restore(checkpoint);
  world->everyone().barrier();
  return monotonic_seconds();
}

}  // namespace copus
