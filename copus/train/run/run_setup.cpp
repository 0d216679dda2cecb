#include "copus/train/run/run_setup.h"

#include <algorithm>
#include <map>
#include <optional>
#include <sstream>
#include <string>
#include <vector>

#include "copus/base/error.h"
#include "copus/base/process/available_memory.h"
#include "copus/base/text/units.h"
#include "copus/checkpoint/checkpoint.h"
#include "copus/checkpoint/hugging_face.h"
#include "copus/model/kernels/precision.h"
#include "copus/model/memory/caching_allocator.h"
#include "copus/model/memory/state_memory.h"
#include "copus/placement/sharding.h"
#include "copus/train/run/device.h"
#include "copus/train/run/run_checkpoints.h"
#include "copus/train/step/step_agreement.h"
#include "copus/train/trainer/modelled_job.h"

namespace copus {

namespace {

// Loads the initial weights. Throws UserError if they do not belong to the configured model.
void load_initial_weights(const RunConfig& config, Trainer& trainer) {
  const HuggingFaceModel model = open_hugging_face(config.init_from);
  std::vector<TensorView> weights;
  for (const auto& [name, weight] : model.weights()) weights.push_back(weight);
  trainer.load(match_parameters(config.model, weights, concat("model.init_from = \"", config.init_from, "\"")));
}

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  return lines;
}

// Verifies a checkpoint's tensors. Each rank verifies some of the files.
void verify_together(const Checkpoint& checkpoint, World& world) {
  if (world.size() == 1) return checkpoint.verify_tensors(0, 1);
  std::optional<Obstacle> damage;
  try {
    checkpoint.verify_tensors(world.rank(), world.size());
  } catch (const UserError& error) {
    damage = Obstacle{error.what()};
  }
  if (const auto agreed = agree_on_obstacle(damage, 0, world.everyone())) throw UserError(agreed->reason);
}

}  // namespace

bool set_up_process(const RunConfig& config, int64_t local_ranks) {
  install_caching_allocator();
  return configure_aten(config.execution.threads, local_ranks);
}

void limit_memory(const RunConfig& config, at::Device device, int64_t ranks) {
  // GPUs report lack of memory themselves. On the modelled clock the described memory belongs to other devices.
  if (!device.is_cpu() || config.cluster.is_modelled()) return;
  set_host_memory_limit(static_cast<int64_t>(memory_of_rank(config.cluster.description, ranks)));
}

void check_modelled_job(const RunPlan& plan) {
  if (!plan.config.cluster.is_modelled()) return;
  const auto obstacle = ModelledJob(plan.config).obstacle_to(plan.start);
  if (!obstacle) return;
  throw UserError(concat(
      "the job that the run stands for cannot begin in ", to_string(plan.start), ": it ", obstacle->reason,
      "; begin in a layout that `copus plan` finds to fit ([parallel], train.micro_batch, ", "train.recompute)"));
}

StateBytes state_bytes_of(const RunConfig& config, const ParallelStrategy& strategy, int64_t rank,
                          int64_t local_ranks) {
  const auto of = [&](int64_t one) {
    const Placement placement = place(config.model, strategy, config.train.sequence_length, one);
    return static_cast<double>(state_bytes(config.model, placement, compute_dtype(config.execution.precision),
                                           optimizer_slots(config.optimizer.kind).size()));
  };
  double all = 0;
  for (int64_t one = 0; one < strategy.world_size(); ++one) all += of(one);
  const double share = std::min(1.0, static_cast<double>(local_ranks) / static_cast<double>(strategy.world_size()));
  return {of(rank), all * share};
}

void check_units(const RunConfig& config, const Configuration& configuration, const std::vector<OptimizerSlot>& slots) {
  const ParallelStrategy& strategy = configuration.strategy;
  if (const auto cut = cut_below_unit(config.model, strategy, config.train.sequence_length, slots)) {
    throw UserError(concat("the run cannot begin in ", to_string(configuration), ": ", *cut));
  }
}

void check_state_fits(const RunConfig& config, const Configuration& configuration, at::Device device,
                      int64_t local_ranks, World& world) {
  const Configuration executed = executed_configuration(config, configuration);
  check_units(config, executed, optimizer_slots(config.optimizer.kind));
  const ParallelStrategy& strategy = executed.strategy;
  const StateBytes bytes = state_bytes_of(config, strategy, world.rank(), local_ranks);
  const auto left = static_cast<double>(available_memory_bytes());
  const auto left_to_process = static_cast<double>(available_address_space_bytes());
  std::optional<Obstacle> lack;
  if (device.is_cpu() && (bytes.of_machine > left || bytes.of_rank > left_to_process)) {
    lack = Obstacle{
        concat("weights, gradients and the optimizer's state take ", format_bytes(bytes.of_rank), " on a rank",
               local_ranks > 1 ? concat(", ", format_bytes(bytes.of_machine), " on the ranks of this machine") : "",
               ", and ", format_bytes(std::min(left, left_to_process)),
               " are left: train a smaller model ([model] has ",
               format_count(static_cast<double>(count_parameters(config.model))),
               " parameters), share it out over more machines ([parallel]), or free memory or raise its limit (ulimit "
               "-v)"),
        true};
  }
  if (const auto agreed = agree_on_obstacle(lack, 0, world.everyone())) {
    throw UserError(world.size() == 1 ? lack->reason : agreed->reason);
  }
}

void check_all_ranks_begin_alike(const RunPlan& plan, const Dataset& dataset, World& world) {
  const std::string mine =
      concat(to_toml(plan.config), "fingerprint of the data = ", dataset.fingerprint(),
             "\ncheckpoint to go on from = ", plan.checkpoint ? concat("step ", plan.checkpoint->step()) : "none",
             "\nbegins with ", to_string(plan.start), '\n');
  const std::vector<std::string> all = gather_bytes(mine, world);
  for (size_t rank = 1; rank < all.size(); ++rank) {
    if (all[rank] == mine) continue;
    const std::vector<std::string> theirs = lines_of(all[rank]), ours = lines_of(mine);
    const auto [their, our] = std::mismatch(theirs.begin(), theirs.end(), ours.begin(), ours.end());
    throw UserError(concat("rank ", rank, " would not train what rank 0 does: there \"",
                           their == theirs.end() ? "" : *their, "\", here \"", our == ours.end() ? "" : *our,
                           "\"; start all ranks with the same arguments, and let them see the same files"));
  }
}

void load_first_state(RunPlan& plan, Trainer& trainer, World& world) {
  check_folder_is_shared(plan.directory, trainer.plan_checkpoint(), world);
  if (plan.checkpoint) {
    verify_together(*plan.checkpoint, world);
    trainer.restore(*plan.checkpoint, plan.new_data);
    plan.checkpoint->release_tensors();  // NFS keeps deleted files as long as they are mapped, and with them the folder
  } else if (!plan.config.init_from.empty()) {
    load_initial_weights(plan.config, trainer);
  }
}

bool agree_to_judge_speed(const RunConfig& config, at::Device device, bool have_cores, World& world) {
  const bool can_measure = have_cores && device.is_cpu() && !config.cluster.is_modelled();
  int64_t can_judge = can_measure || config.cluster.clock == ClockKind::virtual_time;
  world.everyone().broadcast(&can_judge, 1, DataType::int64, 0);
  return can_judge != 0;
}

}  // namespace copus
