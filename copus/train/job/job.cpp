#include "copus/train/job/job.h"

#include <sys/resource.h>

#include <chrono>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "copus/base/error.h"
#include "copus/base/process/cores.h"
#include "copus/base/process/open_files.h"
#include "copus/base/text/units.h"
#include "copus/comm/announcements.h"
#include "copus/comm/job/member/membership.h"
#include "copus/comm/job/start/job_start.h"
#include "copus/comm/job/start/launcher.h"
#include "copus/comm/job/start/launcher_watch.h"
#include "copus/comm/shared_memory/single_rank_world.h"
#include "copus/comm/timed/timed_world.h"
#include "copus/comm/world.h"
#include "copus/train/job/healing_run.h"
#include "copus/train/run/device.h"
#include "copus/train/run/run.h"
#include "copus/train/run/run_forecast.h"
#include "copus/train/run/run_plan.h"
#include "copus/train/step/step_agreement.h"

namespace copus {

namespace {

constexpr int users_mistake = 2;

// Returns whether ranks under our launchers continue when others fail. This requires training state that stays in
// memory after its rank has ended, and so excludes GPUs.
bool can_heal(const RunConfig& config) { return config.heal.enabled && config.execution.device == "cpu"; }

// Returns whether this process must start the ranks of its machine, because another launcher has started it as the
// machine's only process. (A launcher with one process per rank would end or restart its processes when a rank fails.)
// With Open MPI the launcher itself must start the ranks, because mpirun ends the job when any process ends.
bool starts_ranks_of_machine(const RunConfig& config, const RankEnvironment& environment) {
  const int64_t ranks = num_training_ranks(config), machines = environment.world_size;
  return can_heal(config) && environment.launcher != LauncherKind::open_mpi && environment.local_world_size == 1 &&
         ranks > machines && ranks % machines == 0;
}

void check_healing(const RunConfig& config, bool heals) {
  if (!config.heal.machines || heals) return;
  throw UserError(
      "heal.machines = true, and this job does not go on when ranks fail; start one process on each machine by "
      "torchrun "
      "or srun, which starts the machine's ranks, train on the CPU with heal.enabled = true, or set heal.machines = "
      "false");
}

// Starts the ranks and supervises them. `environment` comes from the other launcher (starts_ranks_of_machine); it is
// empty if the job has only this machine.
int launch_healing(const RunConfig& config, const std::optional<RankEnvironment>& environment,
                   const std::vector<std::string>& arguments) {
  const Healing healing{.replaces = config.heal.replace, .restarts = config.heal.restarts};
  const int64_t ranks = num_training_ranks(config);
  if (!environment || environment->world_size == 1) return launch_healing_ranks(ranks, arguments, healing);
  return launch_healing_machine({.machine = environment->rank,
                                 .num_machines = environment->world_size,
                                 .ranks_per_machine = ranks / environment->world_size,
                                 .address = environment->master_address,
                                 .port = environment->master_port,
                                 .attempt = environment->attempt,
                                 .serves_store = environment->rank == 0 && !environment->launcher_serves_store},
                                arguments, healing);
}

void check_ranks(const RunConfig& config, const RankEnvironment& environment) {
  const int64_t ranks = environment.world_size;
  const ParallelStrategy layout = layout_of(config.parallel);
  if (config.cluster.is_modelled()) {
    if (ranks == 1) return;
    throw UserError(concat("cluster.clock \"modelled\" trains in one process, whose clock is that of ",
                           layout.world_size(), " ranks, and the job was started with ", ranks,
                           "; start one process, or choose another clock"));
  }
  if (ranks != layout.world_size()) {
    throw UserError(concat("the layout ", to_string(layout), " is one of ", layout.world_size(),
                           " ranks, and the job was started with ", ranks, " (", environment.size_variable, ")",
                           environment.launcher == LauncherKind::torchrun && !environment.has_agent
                               ? "; unset RANK and WORLD_SIZE if nobody has started the others"
                               : "",
                           "; start as many ranks as the layout has, or change [parallel]",
                           can_heal(config) ? "; or start one process on each machine by torchrun or srun, which then "
                                              "starts the machine's share of the ranks and goes on when some fail"
                                            : ""));
  }
}

// Checks train.device against the layout, without querying devices: only a process that uses a device may do that.
void check_device(const RunConfig& config) {
  const std::string& device = config.execution.device;
  if (num_training_ranks(config) == 1 || device == "cpu" || device == "cuda") return;
  throw UserError(concat("train.device = \"", device,
                         "\": several ranks train on \"cpu\", or on \"cuda\", where those of a ",
                         "machine take its GPUs in turn; set one of these, or all degrees of [parallel] to 1"));
}

// Raises the limit on open files if possible. Throws UserError if it is too low for a process that starts `ranks` ranks
// or is one of them.
void check_open_files(int64_t ranks) {
  const auto needed = static_cast<rlim_t>(open_files_needed(ranks));
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur >= needed) return;
  if (limit.rlim_max < needed) {
    throw UserError(concat("a process may have ", limit.rlim_max, " open files (ulimit -n), and ", needed,
                           " are needed for ", counted(ranks, "rank"), ": raise that limit and start again"));
  }
  limit.rlim_cur = needed;
  ::setrlimit(RLIMIT_NOFILE, &limit);
}

// Checks that `ranks` ranks may start their threads, and throws UserError otherwise. A rank has threads for
// computation, supervision and writing; with several ranks also a second OpenMP team, for the thread that prepares a
// re-layout.
void check_threads(const RunConfig& config, int64_t ranks) {
  constexpr int64_t beside_one = 2, beside_each_of_several = 4;
  const int64_t threads = config.execution.threads > 0 ? config.execution.threads : default_threads(ranks);
  require_threads(ranks == 1 ? threads + beside_one : 1 + ranks * (2 * threads - 1 + beside_each_of_several));
}

// Returns whether another rank reports this mistake, so that the user sees it once. The rank whose failure the job
// recorded first reports it. That is normally rank 0, because other ranks wait up to 2 s for its failure. Copus'
// launchers show only rank 0's message, so under them rank 0 always reports.
bool is_told_by_another(World& world, LauncherKind launcher) {
  if (world.rank() == 0 && launcher == LauncherKind::copus) return false;
  constexpr std::chrono::milliseconds moment(2000), interval(5);
  const auto until = std::chrono::steady_clock::now() + (world.rank() == 0 ? std::chrono::milliseconds(0) : moment);
  while (true) {
    if (const std::optional<FailureReport> failure = world.health().failure()) return failure->rank != world.rank();
    if (std::chrono::steady_clock::now() >= until) return false;
    std::this_thread::sleep_for(interval);
  }
}

// Trains as one process of a job whose processes may join and leave.
int run_member(const RunRequest& request, double max_seconds, std::chrono::steady_clock::time_point start,
               const RankEnvironment& environment) {
  // The first processes have already found any mistake that a process which joins later could find.
  std::optional<RunPlan> plan;
  double wait_limit = default_wait_seconds;
  if (environment.process < environment.world_size) {
    plan = plan_run(request);
    wait_limit = plan->config.wait_limit;
  }
  Membership membership(environment, wait_limit, open_store);
  use_device(at::kCPU);
  return static_cast<int>(run_healing_training(request, std::move(plan), max_seconds, start, membership, at::kCPU,
                                               environment.local_world_size));
}

// Joins the other ranks, to report a mistake together with them. In two cases the others never join, and this process
// reports the mistake alone. First, each machine may have only one process, which starts the machine's ranks unless it
// finds a mistake, so processes without a mistake never join. Second, somebody may have set the variables by hand and
// started no other rank.
std::unique_ptr<World> join_to_tell(const RankEnvironment& environment, const std::exception_ptr& mistake) {
  constexpr double seconds_of_launchers = 20, seconds_by_hand = 3;
  const bool is_by_hand = environment.launcher == LauncherKind::torchrun && !environment.has_agent;
  announce_no_more();  // the user must see the mistake, whatever the others do
  try {
    return join_world(environment, is_by_hand ? seconds_by_hand : seconds_of_launchers);
  } catch (...) {
    std::rethrow_exception(mistake);
  }
}

// Runs `body` as one rank. An exception destroys `world`, which notifies the other ranks. `body` may replace the world
// by one that wraps it.
int run_rank(LauncherKind launcher, std::unique_ptr<World> world,
             const std::function<int(std::unique_ptr<World>&)>& body) {
  try {
    return body(world);
  } catch (const UserError&) {
    if (!world || !is_told_by_another(*world, launcher)) throw;
    return users_mistake;
  }
}

}  // namespace

int run_job(const RunRequest& request, double max_seconds, const std::vector<std::string>& arguments) {
  const std::optional<RankEnvironment> environment = read_rank_environment();
  const std::chrono::steady_clock::time_point start = job_start(environment);
  if (environment) watch_launcher(*environment);
  if (request.dry_run && environment && environment->rank > 0) return 0;  // rank 0 reports
  if (environment && environment->control >= 0) return run_member(request, max_seconds, start, *environment);
  std::optional<RunPlan> plan;
  std::exception_ptr mistake;
  bool starts_ranks = false;
  try {
    plan = plan_run(request);
    check_device(plan->config);
    starts_ranks =
        environment ? starts_ranks_of_machine(plan->config, *environment) : num_training_ranks(plan->config) > 1;
    if (environment && !starts_ranks) check_ranks(plan->config, *environment);
    check_healing(plan->config, starts_ranks && can_heal(plan->config));
    const int64_t machines = environment ? environment->world_size : 1;
    const int64_t ranks_here = starts_ranks ? num_training_ranks(plan->config) / machines : 1;
    if (!request.dry_run) check_open_files(ranks_here);
    if (!request.dry_run && (!environment || starts_ranks)) check_threads(plan->config, ranks_here);
    if (request.dry_run) {
      tell_forecast(std::move(*plan), /*checks_machine=*/!environment);
      return 0;
    }
    if (!environment) check_machine(*plan);
  } catch (const UserError&) {
    if (!environment || request.dry_run) throw;
    mistake = std::current_exception();  // ranks decide together which of them reports it
    starts_ranks = false;
  }

  std::optional<ClaimedDirectory> claimed;
  const bool names_none = request.run_directory.empty();
  // The ranks of a job get the folder from rank 0.
  const bool claims_for_ranks = starts_ranks && environment && environment->rank == 0;
  if (names_none && (!environment || claims_for_ranks)) plan->directory = claimed.emplace(plan->directory).path();
  if (starts_ranks) {
    const RunConfig config = plan->config;
    std::vector<std::string> of_ranks = arguments;
    if (claimed) of_ranks.insert(of_ranks.end(), {"--run-dir", claimed->path().string()});
    plan.reset();  // the ranks make their own plans
    return can_heal(config) ? launch_healing(config, environment, of_ranks)
                            : launch_ranks(num_training_ranks(config), of_ranks);
  }
  if (!environment) {
    const std::unique_ptr<World> world =
        with_links(single_rank_world(), plan->config.cluster.description, plan->config.cluster.clock);
    const at::Device device = find_device(plan->config.execution.device);
    use_device(device);
    return static_cast<int>(run_training(std::move(*plan), max_seconds, start, *world, device, 1));
  }

  std::unique_ptr<World> joined =
      mistake ? join_to_tell(*environment, mistake) : join_world(*environment, plan->config.wait_limit);
  return run_rank(environment->launcher, std::move(joined), [&](std::unique_ptr<World>& world) {
    if (mistake) std::rethrow_exception(mistake);
    const RunConfig& config = plan->config;
    const at::Device device = find_device(config.execution.device, environment->local_rank, world->size());
    world = connect_devices(std::move(world), device, config.wait_limit);
    world = with_links(std::move(world), config.cluster.description, config.cluster.clock);
    if (names_none) {
      if (world->rank() == 0) plan->directory = claimed.emplace(plan->directory).path();
      plan->directory = broadcast_text(plan->directory.string(), 0, world->everyone());
    }
    return static_cast<int>(
        run_training(std::move(*plan), max_seconds, start, *world, device, environment->local_world_size));
  });
}

}  // namespace copus
