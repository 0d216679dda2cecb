#include "copus/train/trainer/trainer.h"

#include <utility>

#include "copus/base/error.h"
#include "copus/base/text/units.h"
#include "copus/model/kernels/precision.h"
#include "copus/model/memory/device_memory.h"
#include "copus/orchestrator/learning_rate/rate_rule.h"
#include "copus/train/state/state_transfer.h"
#include "copus/train/trainer/evaluation.h"
#include "copus/train/trainer/modelled_training.h"
#include "copus/train/trainer/rank_switch.h"
#include "copus/train/trainer/restore.h"
#include "copus/train/trainer/step_memory.h"

namespace copus {

namespace {

// Connects the ranks for the layout, and makes this rank's part of the model, all zero.
std::unique_ptr<RankModel> make_model(RankTraining& training, StateMemory& memory) {
  const RunConfig& config = training.config;
  const Configuration executed = training.executed();
  training.world.require(groups_of(config, executed));
  const Placement placement =
      place(config.model, executed.strategy, config.train.sequence_length, training.world.rank());
  return std::make_unique<RankModel>(config, executed.strategy, training.world, training.recorder,
                                     allocate_zeros(config.model, placement, compute_dtype(config.execution.precision),
                                                    optimizer_slots(config.optimizer.kind).size(), memory));
}

std::unique_ptr<GradientSource> make_gradient_source(RankTraining& training) {
  if (training.config.cluster.is_modelled()) return std::make_unique<ModelledGradients>(training);
  return std::make_unique<SharedGradients>(training);
}

std::unique_ptr<SwitchMethod> make_switch_method(RankTraining& training, StateMover& mover, Survival& survival) {
  if (training.config.cluster.is_modelled()) return std::make_unique<ModelledSwitch>(training.config);
  return std::make_unique<RankSwitch>(training, mover, survival);
}

}  // namespace

Trainer::Trainer(const RunConfig& config, const Dataset& dataset, at::Device device, World& world)
    : Trainer(config, configuration_of(config), dataset, device, world) {}

Trainer::Trainer(const RunConfig& config, const Configuration& configuration, const Dataset& dataset, at::Device device,
                 World& world, const std::vector<int64_t>& processes, const std::vector<int64_t>& machines)
    : mover_(world, device, (config.adapt.policy != PolicyKind::none && world.size() > 1) || !processes.empty(),
             processes.empty() ? ranks_as_processes(world) : processes, machines),
      training_{.config = config, .dataset = dataset, .device = device, .world = world},
      gradients_(make_gradient_source(training_)),
      switcher_(make_switch_method(training_, mover_, survival_), training_, survival_),
      step_(training_, *gradients_, survival_, switcher_) {
  TrainingState& state = training_.state;
  state.configuration = configuration;
  training_.model = make_model(training_, mover_.memory());
  if (!processes.empty() && mover_.has_arena()) {
    const int64_t bytes = journal_bytes(config.optimizer, config.model);
    survival_.keep(mover_.arena(), mover_.memory().allocate(bytes, at::kByte).zero_(), training_.model->state());
  }
  survival_.share_addresses(mover_, training_.model->state(),
                            processes.empty() ? ranks_as_processes(world) : processes);
  training_.model->parameters.initialize(config.execution.seed);
  training_.model->gather_weights();
  state.seed = config.execution.seed;
  state.sequence_length = config.train.sequence_length;
  state.byte_tokens = dataset.bytes();
  state.data_fingerprint = dataset.fingerprint();
  state.held_out_fingerprint = dataset.held_out_fingerprint(samples_of_evaluation(config, dataset));
  state.rate_factor = initial_rate_factor(config, configuration.global_batch);
  state.optimizer = step_.rule().begin(static_cast<double>(configuration.global_batch));
}

Trainer::Trainer(const RunConfig& config, const Dataset& dataset, at::Device device, World& world, SurvivingState state)
    : mover_(world, state.arena, state.at_rest.all, state.at_rest.all.processes),
      training_{
          .config = config, .dataset = dataset, .device = device, .world = world, .state = state.at_rest.training},
      survival_(std::move(state)),
      gradients_(make_gradient_source(training_)),
      switcher_(make_switch_method(training_, mover_, survival_), training_, survival_),
      step_(training_, *gradients_, survival_, switcher_) {
  world.require(groups_of(config, configuration()));
  training_.model =
      std::make_unique<RankModel>(config, configuration().strategy, world, training_.recorder, survival_.mine());
  training_.model->optimizer->set_steps(training_.state.optimizer_steps);
}

void Trainer::keep_record(int64_t epoch) { survival_.begin_records(epoch, training_.state); }

std::optional<SurvivingState> Trainer::leave() {
  switcher_.await_preparation();
  training_.model.reset();
  return survival_.leave(training_.state);
}

void Trainer::load(const std::map<std::string, TensorView, std::less<>>& weights) {
  load_weights(training_.whole_parameters(), weights);
  training_.model->gather_weights();
}

void Trainer::restore(const Checkpoint& checkpoint, bool takes_new_data) {
  restore_training(checkpoint, takes_new_data, step_.rule(), training_);
  survival_.mark_update_complete(training_.state.optimizer_steps);
}

void Trainer::branch_from(const Checkpoint& checkpoint, int64_t skipped_samples) {
  restore(checkpoint);
  training_.state.consumed_samples += skipped_samples;
  training_.state.rate_factor = 1;
}

void Trainer::branch_from(const Trainer& trunk, int64_t skipped_samples) {
  COPUS_CHECK(configuration().strategy == trunk.configuration().strategy, to_string(configuration()), " from ",
              to_string(trunk.configuration()));
  training_.whole_parameters();
  trunk.training_.whole_parameters();
  const std::vector<BucketState> to = training_.model->state(), from = trunk.training_.model->state();
  COPUS_CHECK(to.size() == from.size(), to.size(), ", ", from.size());
  const auto copy = [](const at::Tensor& target, const at::Tensor& source) {
    if (target.defined()) target.copy_(source);
  };
  for (size_t bucket = 0; bucket < to.size(); ++bucket) {
    copy(to[bucket].weight, from[bucket].weight);
    copy(to[bucket].master, from[bucket].master);
    for (size_t slot = 0; slot < to[bucket].slots.size(); ++slot)
      copy(to[bucket].slots[slot], from[bucket].slots[slot]);
  }
  training_.model->optimizer->set_steps(trunk.training_.state.optimizer_steps);
  const Configuration own = configuration();
  training_.state = trunk.training_.state;
  training_.state.configuration = own;
  training_.state.consumed_samples += skipped_samples;
  training_.state.rate_factor = 1;
}

std::optional<Obstacle> Trainer::obstacle_to_branch(int64_t global_batch) const {
  Configuration configuration = training_.executed();
  configuration.global_batch = global_batch;
  RunConfig config = training_.config;
  config.noise_scale.dual_interval = 0;  // as in a branch
  // The modelled job's step is not this process's.
  double bytes = config.cluster.is_modelled() ? 0 : step_bytes(config, configuration, training_.world.rank());
  const auto add = [&](const at::Tensor& tensor) {
    if (tensor.defined()) bytes += static_cast<double>(tensor.nbytes());
  };
  for (const BucketState& bucket : training_.model->state()) {
    add(bucket.weight);
    add(bucket.gradient);
    if (!bucket.master.is_alias_of(bucket.weight)) add(bucket.master);
    for (const at::Tensor& slot : bucket.slots) add(slot);
  }
  // Ranks on CPUs may all share one machine's memory.
  if (training_.device.is_cpu()) bytes *= static_cast<double>(training_.world.size());
  return agree_on_obstacle(lack_of_memory(bytes, "another copy of the state and a step in it", training_.device), 0,
                           training_.world.everyone());
}

void Trainer::require_groups() const { training_.world.require(groups_of(training_.config, training_.executed())); }

void Trainer::spend(double seconds) {
  training_.state.add_pause(seconds);
  training_.clock.add_pause(seconds);
  survival_.write_record(training_.state);
}

StepRecord Trainer::step(const StopQuestion& stop) {
  StepRecord record;
  if (!fits_into_memory([&] { record = step_.run(stop); })) throw UserError(needs_too_much_memory());
  return record;
}

std::string Trainer::needs_too_much_memory() const {
  const DeviceMemory memory = device_memory(training_.device);
  const auto bytes = [](int64_t count) { return format_bytes(static_cast<double>(count)); };
  return concat("step ", training_.state.step + 1, " does not fit into the memory of ", training_.device.str(),
                memory.total_bytes > 0 ? concat(" (", bytes(memory.total_bytes), ")") : "",
                ": with train.micro_batch = ", configuration().micro_batch, " in the layout ",
                to_string(layout_of(configuration().strategy)), ", tensors took up to ", bytes(memory.peak_used_bytes),
                " and ", bytes(memory.reserved_bytes), " were reserved",
                training_.world.communicator_bytes() > 0
                    ? concat(", beside ", bytes(training_.world.communicator_bytes()), " of connections between GPUs")
                    : "",
                "; lower train.micro_batch, set train.recompute = \"full\", or share the model out over "
                "more ranks");
}

std::optional<HeldOutLoss> Trainer::evaluate(const StopQuestion& stop) { return evaluate_held_out(training_, stop); }

std::optional<double> Trainer::held_out_loss(const StopQuestion& stop) {
  const std::optional<HeldOutLoss> loss = evaluate(stop);
  return loss ? std::optional(loss->mean) : std::nullopt;
}

CheckpointPlan Trainer::plan_checkpoint(const CheckpointLimits& limits) const {
  return plan_checkpoint_of(*training_.model, limits);
}

void Trainer::hand_over_state(const CheckpointPlan& plan, const TensorSink& sink) {
  training_.model->weights.finish();
  training_.recorder.be_at(concat("checkpoint after step ", training_.state.step));
  copus::hand_over_state(*training_.model, plan, sink);
}

void Trainer::check_state(const std::optional<StateHash>& before) const {
  const StateHash now = hash_of_state();
  if (const auto damage = before ? now.damage_since(*before) : now.damage()) {
    throw InternalError(
        concat("the training state is damaged: ", *damage, "; go on from the last checkpoint with --resume"));
  }
}

bool Trainer::finished() const {
  const int64_t limit = limit_in_tokens(training_.config.train);
  if (limit > 0 && training_.state.consumed_tokens >= limit) return true;
  return training_.config.train.max_seconds > 0 &&
         training_.state.elapsed_seconds >= training_.config.train.max_seconds;
}

double Trainer::share_done() const {
  return copus::share_done(training_.config.train, training_.state.consumed_tokens, training_.state.elapsed_seconds);
}

double Trainer::seconds_left() const {
  const TrainingState& state = training_.state;
  return copus::seconds_left(training_.config.train, state.consumed_tokens, state.elapsed_seconds,
                             state.paused_seconds);
}

}  // namespace copus
