#include "copus/train/job.h"

#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <thread>
#include <utility>

#include "copus/base/error.h"
#include "copus/comm/job/launcher.h"
#include "copus/comm/job/membership.h"
#include "copus/comm/shared_memory/single_rank_world.h"
#include "copus/comm/timed/timed_world.h"
#include "copus/comm/world.h"
#include "copus/train/device.h"
#include "copus/train/healing_run.h"
#include "copus/train/run.h"

namespace copus {

namespace {

constexpr int users_mistake = 2;

void check_ranks(const RunConfig& config, int64_t ranks) {
  const ParallelStrategy layout = layout_of(config.parallel);
  if (config.cluster.is_modelled()) {
    if (ranks == 1) return;
    throw UserError(concat("cluster.clock \"modelled\" trains in one process, whose clock is that of ",
                           layout.world_size(), " ranks, and the job was started with ", ranks,
                           "; start one process, or choose another clock"));
  }
  if (ranks != layout.world_size()) {
    throw UserError(concat("the layout ", to_string(layout), " is one of ", layout.world_size(),
                           " ranks, and the job was started with ", ranks,
                           "; start as many ranks as the layout has, or change [parallel]"));
  }
}

// Checks train.device against the layout, without asking for devices: that is left to the process that is going to use
// one.
void check_device(const RunConfig& config) {
  const std::string& device = config.train.device;
  if (num_training_ranks(config) == 1 || device == "cpu" || device == "cuda") return;
  throw UserError(concat("train.device = \"", device,
                         "\": several ranks train on \"cpu\", or on \"cuda\", where those of a ",
                         "machine take its GPUs in turn; set one of these, or all degrees of [parallel] to 1"));
}

// Tells whether another rank reports the mistake. All ranks may have found the same one, and one message is enough:
// rank 0's, or this rank's where rank 0 does not end within a moment.
bool is_told_by_another(World& world) {
  constexpr std::chrono::milliseconds moment(2000), interval(5);
  const auto until = std::chrono::steady_clock::now() + (world.rank() == 0 ? std::chrono::milliseconds(0) : moment);
  while (true) {
    if (const std::optional<FailureReport> failure = world.health().failure()) return failure->rank != world.rank();
    if (std::chrono::steady_clock::now() >= until) return false;
    std::this_thread::sleep_for(interval);
  }
}

// Whether the ranks that our launcher starts go on without those that fail: training state has to lie in memory that
// outlives them.
bool can_heal(const RunConfig& config) { return config.heal.enabled && config.train.device == "cpu"; }

// Trains as one process of a job whose ranks come and go.
int run_member(const RunRequest& request, double max_seconds, std::chrono::steady_clock::time_point start,
               const RankEnvironment& environment) {
  // The ranks' mistakes are alike, and those of a process that comes later have been found by the first ones.
  std::optional<RunPlan> plan;
  double wait_limit = default_wait_seconds;
  if (environment.process < environment.world_size) {
    plan = plan_run(request);
    wait_limit = plan->config.wait_limit;
  }
  Membership membership(environment, wait_limit, open_store);
  use_device(at::kCPU);
  return static_cast<int>(
      run_healing_training(std::move(plan), max_seconds, start, membership, at::kCPU, environment.local_world_size));
}

// Runs `body` as one rank. An exception that leaves this function destroys `world`, which tells the other ranks. `body`
// may replace the world by one that wraps it.
int run_rank(std::unique_ptr<World> world, const std::function<int(std::unique_ptr<World>&)>& body) {
  try {
    return body(world);
  } catch (const UserError&) {
    if (!world || !is_told_by_another(*world)) throw;
    return users_mistake;
  }
}

}  // namespace

int run_job(const RunRequest& request, double max_seconds, std::chrono::steady_clock::time_point start,
            const std::vector<std::string>& arguments) {
  const std::optional<RankEnvironment> environment = read_rank_environment();
  if (environment && environment->control >= 0) return run_member(request, max_seconds, start, *environment);
  std::optional<RunPlan> plan;
  std::exception_ptr mistake;
  try {
    plan = plan_run(request);
    check_device(plan->config);
    if (environment) check_ranks(plan->config, environment->world_size);
  } catch (const UserError&) {
    if (!environment) throw;
    mistake = std::current_exception();  // the ranks decide together which of them reports it
  }

  if (!environment) {
    const int64_t size = num_training_ranks(plan->config);
    if (size > 1) {
      const Healing healing{.replaces = plan->config.heal.replace};
      const bool heals = can_heal(plan->config);
      plan.reset();  // the ranks read the plan for themselves
      return heals ? launch_healing_ranks(size, arguments, healing) : launch_ranks(size, arguments);
    }
    const std::unique_ptr<World> world =
        with_links(single_rank_world(), plan->config.cluster.description, plan->config.cluster.clock);
    const at::Device device = find_device(plan->config.train.device);
    use_device(device);
    return static_cast<int>(run_training(std::move(*plan), max_seconds, start, *world, device, 1));
  }

  std::unique_ptr<World> joined = join_world(*environment, mistake ? default_wait_seconds : plan->config.wait_limit);
  return run_rank(std::move(joined), [&](std::unique_ptr<World>& world) {
    if (mistake) std::rethrow_exception(mistake);
    const RunConfig& config = plan->config;
    const at::Device device = find_device(config.train.device, environment->local_rank, world->size());
    world = connect_devices(std::move(world), device, config.wait_limit);
    world = with_links(std::move(world), config.cluster.description, config.cluster.clock);
    return static_cast<int>(
        run_training(std::move(*plan), max_seconds, start, *world, device, environment->local_world_size));
  });
}

}  // namespace copus
