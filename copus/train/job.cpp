#include "copus/train/job.h"

#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <thread>
#include <utility>

#include "copus/base/error.h"
#include "copus/comm/launcher.h"
#include "copus/comm/timed_world.h"
#include "copus/comm/world.h"
#include "copus/train/run.h"

namespace copus {

namespace {

constexpr int users_mistake = 2;

void check_ranks(const RunConfig& config, int64_t ranks) {
  const ParallelStrategy strategy = strategy_of(config);
  if (ranks != strategy.world_size()) {
    throw UserError(concat("the layout ", to_string(strategy), " (data x tensor x pipeline parallel) is one of ",
                           strategy.world_size(), " ranks, and the job was started with ", ranks,
                           "; start as many ranks as the layout has, or change [parallel]"));
  }
}

// Several ranks exchange host memory.
void check_device(const RunConfig& config) {
  if (strategy_of(config).world_size() > 1 && config.train.device != "cpu") {
    throw UserError(concat("train.device = \"", config.train.device, "\": several ranks train on \"cpu\" alone; set ",
                           "train.device = \"cpu\", or all degrees of [parallel] to 1"));
  }
}

// All ranks may have found the same mistake, and one message is enough: rank 0's, or this one's where rank 0 does not
// end within a moment.
bool is_told_by_another(World& world) {
  constexpr std::chrono::milliseconds moment(2000), interval(5);
  const auto until = std::chrono::steady_clock::now() + (world.rank() == 0 ? std::chrono::milliseconds(0) : moment);
  while (true) {
    if (const std::optional<FailureReport> failure = world.health().failure()) return failure->rank != world.rank();
    if (std::chrono::steady_clock::now() >= until) return false;
    std::this_thread::sleep_for(interval);
  }
}

// An exception that leaves this function ends `world` with it, which tells the other ranks.
int run_rank(std::unique_ptr<World> world, const std::function<int(World&)>& body) {
  try {
    return body(*world);
  } catch (const UserError&) {
    if (!is_told_by_another(*world)) throw;
    return users_mistake;
  }
}

}  // namespace

int run_job(const RunRequest& request, double max_seconds, std::chrono::steady_clock::time_point start,
            const std::vector<std::string>& arguments) {
  const std::optional<RankEnvironment> environment = read_rank_environment();
  std::optional<RunPlan> plan;
  std::exception_ptr mistake;
  try {
    plan = plan_run(request);
    check_device(plan->config);
    if (environment) check_ranks(plan->config, environment->world_size);
  } catch (const UserError&) {
    if (!environment) throw;
    mistake = std::current_exception();  // the ranks decide together who tells
  }

  if (!environment) {
    const int64_t size = strategy_of(plan->config).world_size();
    if (size > 1) {
      plan.reset();  // the ranks read it for themselves
      return launch_ranks(size, arguments);
    }
    const std::unique_ptr<World> world =
        with_links(single_rank_world(), plan->config.cluster.description, plan->config.cluster.clock);
    return static_cast<int>(run_training(std::move(*plan), max_seconds, start, *world, 1));
  }

  std::unique_ptr<World> world =
      join_world(*environment, mistake ? default_wait_seconds : plan->config.parallel.wait_limit);
  if (!mistake) world = with_links(std::move(world), plan->config.cluster.description, plan->config.cluster.clock);
  return run_rank(std::move(world), [&](World& joined) {
    if (mistake) std::rethrow_exception(mistake);
    return static_cast<int>(run_training(std::move(*plan), max_seconds, start, joined, environment->local_world_size));
  });
}

}  // namespace copus
