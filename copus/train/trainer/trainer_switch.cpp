// Changes of a Trainer's configuration: the part of the class that works between two steps.
#include <algorithm>
#include <array>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "copus/base/error.h"
#include "copus/base/process/available_memory.h"
#include "copus/base/text/units.h"
#include "copus/comm/rank_failure.h"
#include "copus/description/configuration_text.h"
#include "copus/model/kernels/kernels.h"
#include "copus/model/kernels/precision.h"
#include "copus/model/memory/device_memory.h"
#include "copus/orchestrator/predictions/step_time_learner.h"
#include "copus/performance/memory.h"
#include "copus/performance/training_system.h"
#include "copus/placement/copies.h"
#include "copus/train/trainer/trainer.h"

namespace copus {

namespace {

void refuse(SwitchReport& report, SwitchReport::Outcome outcome, const Obstacle& obstacle) {
  report.outcome = outcome;
  report.reason = obstacle.reason;
  report.is_lack_of_memory = obstacle.is_lack_of_memory;
}

// Checks that the state is consistent before a move. The move would spread earlier damage, and would be blamed for it.
void check_whole(const StateHash& state, const SwitchReport& report) {
  const auto damage = state.damage();
  if (!damage) return;
  throw InternalError(concat("before the change ", describe_change(report.from, report.to), " after step ",
                             report.after_step, " the training state is damaged: ", *damage,
                             ". Go on from a checkpoint before that."));
}

}  // namespace

// Phases of a switch. Each is reported as this rank's place, and timed.
class SwitchPhases {
 public:
  // Begins the switch after this step.
  SwitchPhases(World& world, StepRecorder& recorder, int64_t after_step)
      : world_(world), recorder_(recorder), after_step_(after_step) {}

  // Waits until the last rank has ended the step. This is not timed, since the switch does not cause it.
  void wait_for_all_ranks() {
    tell("waiting for all ranks");
    world_.everyone().barrier();
  }

  // Ends the previous phase and begins this one. `detail`: progress within the phase, reported but not timed
  // separately.
  void begin(const std::string& phase, const std::string& detail = "") {
    end_phase();
    phase_ = phase;
    tell(detail.empty() ? phase : concat(phase, ", ", detail));
  }

  // Adds seconds that were spent on a phase earlier.
  void add(const std::string& phase, double seconds) {
    if (seconds > 0) seconds_[phase] += seconds;
  }

  // Ends the last phase. Returns the seconds of each on the rank's clock.
  std::map<std::string, double> end() {
    end_phase();
    recorder_.be_at(concat("after the switch behind step ", after_step_));
    return std::exchange(seconds_, {});
  }

 private:
  void tell(const std::string& place) { recorder_.be_at(concat("switching after step ", after_step_, ": ", place)); }

  void end_phase() {
    const double end = world_.clock().now();
    if (!phase_.empty()) seconds_[phase_] += end - begin_;
    phase_.clear();
    begin_ = end;
  }

  World& world_;
  StepRecorder& recorder_;
  int64_t after_step_;
  std::string phase_;  // empty: none has begun
  double begin_ = 0;
  std::map<std::string, double> seconds_;
};

void Trainer::announce(const SwitchIntent& intent) {
  COPUS_CHECK(world_.rank() == 0, "rank ", world_.rank(), " announces a switch");
  COPUS_CHECK(!announced_ && !pending_, "a switch is announced while another is under way");
  announced_ = intent;
}

void Trainer::announce_rate_factor(double factor) {
  COPUS_CHECK(world_.rank() == 0, "rank ", world_.rank(), " announces a learning rate");
  announced_rate_factor_ = factor;
}

// Prepares the switch while training continues; all ranks know of it now. The groups of the new layout are connected at
// once, because a failure to connect does not stop training in the old layout.
void Trainer::prepare_switch(const SwitchIntent& intent) {
  announced_.reset();
  pending_.emplace(PendingSwitch{.intent = intent, .refusal = obstacle_to(intent.configuration)});
  const ParallelStrategy& strategy = intent.configuration.strategy;
  if (pending_->refusal || modelled_ || strategy == configuration().strategy) return;
  const double begin = world_.clock().now();
  pending_->refusal = open_groups(intent.configuration);
  pending_->opening_seconds = world_.clock().now() - begin;
  if (pending_->refusal) {  // no switch follows in which the ranks would agree on the seconds
    world_.everyone().all_reduce(&pending_->opening_seconds, 1, DataType::float64, Reduction::maximum);
    return;
  }
  pending_->preparation = mover_.prepare(request_to(strategy), world_.rank(), model_->state(),
                                         model_->parameters.compute_dtype(), /*keeps_old=*/survives_.has_value());
}

// The obstacles that every rank can find without the others.
std::optional<Obstacle> Trainer::obstacle_to(const Configuration& configuration) {
  if (modelled_) return modelled_->obstacle_to(configuration);
  const int64_t ranks = configuration.strategy.world_size();
  if (ranks != world_.size()) return Obstacle{concat("a layout of ", ranks, " ranks in a job of ", world_.size())};
  if (const auto reason = infeasible_reason(config_.model, configuration, config_.train.sequence_length)) {
    return Obstacle{*reason};
  }
  if (config_.heal.machines && survives_) {
    std::vector<int64_t> machines;
    for (const int64_t process : mover_.state_in_arenas().processes) {
      machines.push_back(mover_.arena()->machine_of(process));
    }
    // If the current layout does not survive the loss of a machine either, nothing is lost by another such layout.
    if (outlives_any_machine(this->configuration().strategy, machines) &&
        !outlives_any_machine(configuration.strategy, machines)) {
      return Obstacle{"some training state would be on one machine alone (heal.machines)"};
    }
  }
  if (const auto reason = out_of_memory_reason(memory_model_of(config_).predict(configuration),
                                               config_.cluster.description.device.memory_bytes)) {
    return Obstacle{*reason, true};
  }
  return std::nullopt;
}

// Connects the groups of a layout in addition to the groups of the current one. Every rank calls it and returns the
// same result.
std::optional<Obstacle> Trainer::open_groups(const Configuration& configuration) {
  std::vector<GroupUse> groups = groups_of(config_, this->configuration());
  const std::vector<GroupUse> new_groups = groups_of(config_, configuration);
  groups.insert(groups.end(), new_groups.begin(), new_groups.end());
  release_cached_memory(device_);
  // The steps until the switch need their memory again, so reserve it while connections are made.
  at::Tensor memory_of_step;
  if (!device_.is_cpu()) {
    const auto bytes = static_cast<int64_t>(step_bytes(this->configuration()));
    static_cast<void>(fits_into_memory([&] { memory_of_step = kernels::empty({bytes}, at::kByte, device_); }));
  }
  const std::optional<std::string> lack = world_.prepare(groups);
  if (memory_of_step.defined()) {
    // In the cache this single block would serve only requests of its size.
    memory_of_step.reset();
    release_cached_memory(device_);
  }
  if (lack) return Obstacle{*lack, true};
  return std::nullopt;
}

RelayoutRequest Trainer::request_to(const ParallelStrategy& strategy) const {
  return {.model = config_.model,
          .sequence_length = config_.train.sequence_length,
          .from = configuration().strategy,
          .to = strategy,
          .recipe = training_recipe(config_.optimizer, model_->parameters.compute_dtype()),
          .ranks_per_node = config_.cluster.description.ranks_per_node};
}

std::optional<SwitchReport> Trainer::switch_if_due() {
  if (!pending_ || state_.step < pending_->intent.commit_after_step) return std::nullopt;
  PendingSwitch pending = *std::exchange(pending_, std::nullopt);
  const SwitchIntent& intent = pending.intent;
  const double arrived = world_.clock().now();
  SwitchReport report;
  report.after_step = state_.step;
  report.consumed_samples = state_.consumed_samples;
  report.from = configuration();
  report.to = intent.configuration;
  report.rate_factor = intent.rate_factor;
  if (pending.refusal) {
    refuse(report, SwitchReport::Outcome::vetoed, *pending.refusal);
    if (pending.opening_seconds > 0) {  // training paused, although groups could not be connected
      report.pause_seconds = pending.opening_seconds;
      state_.elapsed_seconds += report.pause_seconds;
      clock_.add_pause(report.pause_seconds);
    }
    return report;
  }
  if (modelled_) {
    make_modelled_switch(intent, report);
    return report;
  }
  SwitchPhases phases(world_, recorder_, state_.step);
  phases.add("building groups", pending.opening_seconds);
  double begin = arrived;
  if (pending.preparation.valid()) {
    // After the barrier ranks may read each other's whole weights.
    model_->weights.finish();
    // The pause begins when the last rank has ended the step, since the others would have waited for it in any case.
    phases.wait_for_all_ranks();
    gather_seconds_now();
    begin = world_.clock().now();
    change_layout(pending, phases, report);
  } else if (intent.configuration.micro_batch > configuration().micro_batch) {
    if (const auto obstacle = agree_on_obstacle(rehearse(intent.configuration), 0, world_.everyone())) {
      refuse(report, SwitchReport::Outcome::vetoed, *obstacle);
    } else if (const auto lack = world_.prepare(groups_of(config_, intent.configuration))) {
      refuse(report, SwitchReport::Outcome::vetoed, Obstacle{*lack, true});
    }
  }
  if (report.outcome == SwitchReport::Outcome::moved) change_configuration(intent);
  report.phase_seconds = phases.end();
  report.pause_seconds = pending.opening_seconds + world_.clock().now() - begin;
  if (intent.configuration.strategy != report.from.strategy) {
    // Sets the times of the switch on all ranks to the times of the slowest rank. The run's clock is rank 0's, which
    // also counts the wait until the other ranks have ended their steps. It advances by at least the longest pause of
    // any rank.
    const double by_clock =
        world_.rank() == 0 ? pending.opening_seconds + world_.clock().now() - arrived : report.pause_seconds;
    std::array<double, 4> slowest = {report.pause_seconds, report.prepare_seconds,
                                     static_cast<double>(report.peak_bytes), by_clock};
    world_.everyone().all_reduce(slowest.data(), slowest.size(), DataType::float64, Reduction::maximum);
    report.pause_seconds = slowest[0];
    report.prepare_seconds = slowest[1];
    report.peak_bytes = static_cast<int64_t>(slowest[2]);
    state_.elapsed_seconds += slowest[3];
  }
  clock_.add_pause(report.pause_seconds);
  return report;
}

void Trainer::change_configuration(const SwitchIntent& intent) {
  if (configuration() != intent.configuration) {
    state_ = state_after(intent);
    write_record();
  }
  clock_.forget_expectation();
  plan_steps();
}

TrainingState Trainer::state_after(const SwitchIntent& intent) const {
  TrainingState state = state_;
  state.rate_factor = intent.rate_factor;
  state.configuration = intent.configuration;
  return state;
}

// Sends the addresses of the moved state to all ranks. If the state survives failures, no rank releases the old layout
// until all ranks know that all have the new one.
void Trainer::settle_after_move(const std::vector<BucketState>& state, const TrainingState& training) {
  const std::vector<int64_t> processes = mover_.state_in_arenas().processes;
  if (!survives_) return settle(state, processes);
  journal_in(survives_->journal).rest(training.optimizer_steps);
  survives_->moved.emplace(StateAtRest{.training = training, .mine = state, .all = {}});
  settle(state, processes);
  survives_->moved->all = mover_.state_in_arenas();
  world_.everyone().barrier();
  survives_->at_rest = *std::exchange(survives_->moved, std::nullopt);
  ++survives_->moves;
  state_ = survives_->at_rest.training;
  write_record();
}

void Trainer::change_layout(PendingSwitch& pending, SwitchPhases& phases, SwitchReport& report) {
  Communicator& everyone = world_.everyone();
  phases.begin("preparing");
  const PreparedRelayout prepared = pending.preparation.get();
  const RelayoutPlan& plan = prepared.plan;
  report.prepare_seconds = prepared.seconds;
  phases.begin("agreeing");
  if (const auto obstacle = agree_on_obstacle(prepared.veto, plan.hash, everyone)) {
    refuse(report, SwitchReport::Outcome::vetoed, *obstacle);
    world_.require(groups_of(config_, configuration()));  // closes groups that are not needed
    return;
  }
  // The groups of both layouts exist until the end of the move, so moving back needs no more memory for them.
  report.bytes_copied = plan.bytes_copied;
  report.bytes_received = plan.bytes_received;
  report.peak_bound_bytes = plan.peak_bound_bytes;

  const RelayoutRequest request = request_to(pending.intent.configuration.strategy);
  RelayoutRequest back = request;
  std::swap(back.from, back.to);
  const at::ScalarType dtype = compute_dtype(config_.execution.precision);
  std::optional<StateHash> before;
  if (config_.adapt.verify) {
    phases.begin("verifying");
    before = hash_of_state();
    check_whole(*before, report);
  }
  try {
    model_->executor.finish_sends();
    std::vector<BucketState> state = model_->state();
    if (survives_) {  // every rank has made its update, or none would be here
      for (BucketState& bucket : survives_->at_rest.mine) bucket.gradient.reset();
    }
    report.peak_bytes = move(state, request, prepared, phases);
    if (const std::optional<Obstacle> obstacle = assemble(report.to, state, prepared.buckets, phases)) {
      phases.begin("moving back");
      std::vector<BucketOffsets> buckets;
      if (survives_) {  // the old state is still in place
        state = survives_->at_rest.mine;
        const Placement placement = place(config_.model, back.to, config_.train.sequence_length, world_.rank());
        buckets = arrange_buckets(list_local_parameters(config_.model, placement), placement);
      } else {
        settle(state, mover_.state_in_arenas().processes);
        const PreparedRelayout prepared_back = mover_.prepare(back, world_.rank(), state, dtype, false).get();
        COPUS_CHECK(!prepared_back.veto, prepared_back.veto->reason);
        report.peak_bytes = std::max(report.peak_bytes, move(state, back, prepared_back, phases));
        buckets = prepared_back.buckets;
      }
      const std::optional<Obstacle> still = assemble(report.from, state, buckets, phases);
      COPUS_CHECK(!still, "nor can the layout before be had again: ", still->reason);
      refuse(report, SwitchReport::Outcome::rolled_back, *obstacle);
    }
    if (report.outcome == SwitchReport::Outcome::moved) world_.require(groups_of(config_, report.to));  // as above
    settle_after_move(state, report.outcome == SwitchReport::Outcome::moved ? state_after(pending.intent) : state_);
    if (dtype != master_dtype_of(dtype)) model_->publish_weights();
    if (before) {
      phases.begin("verifying");
      if (const auto damage = hash_of_state().damage_since(*before)) throw InternalError(*damage);
    }
  } catch (const RankFailure&) {
    throw;
  } catch (const std::exception& error) {
    throw InternalError(concat("the change ", describe_change(report.from, report.to), " after step ",
                               report.after_step, " failed, and with it the training state: ", error.what(),
                               ". Go on from the last checkpoint."));
  }
}

StateHash Trainer::hash_of_state() const {
  StateHash hash(config_.model, optimizer_slots(config_.optimizer.kind));
  model_->weights.finish();
  hash.add_rank(model_->parameters.placement(), model_->state(), /*has_compute_weights=*/true);
  hash.add_counters(state_, model_->optimizer->steps(), world_.rank(), world_.size());
  hash.add_up(world_.everyone());
  return hash;
}

void Trainer::check_state(const std::optional<StateHash>& before) const {
  const StateHash now = hash_of_state();
  if (const auto damage = before ? now.damage_since(*before) : now.damage()) {
    throw InternalError(
        concat("the training state is damaged: ", *damage, "; go on from the last checkpoint with --resume"));
  }
}

// Takes this rank's model apart and moves its whole state. Returns the peak of the state bytes.
int64_t Trainer::move(std::vector<BucketState>& state, const RelayoutRequest& request, const PreparedRelayout& prepared,
                      SwitchPhases& phases) {
  const at::ScalarType dtype = compute_dtype(config_.execution.precision);
  release_model(state);
  RankClock& clock = world_.clock();
  const double begin = clock.now();
  clock.begin_communication();
  const int64_t peak =
      mover_.move(prepared, dtype, state, [&](const std::string& round) { phases.begin("moving the state", round); });
  clock.end_communication();
  // Adds the predicted time of the cluster's links, since the state is copied within this machine and does not cross
  // them.
  if (mover_.reads_arenas() && config_.cluster.clock != ClockKind::real) {
    clock.advance_to(begin + relayout_seconds(request, config_.cluster.description));
  }
  return peak;
}

void Trainer::release_model(std::vector<BucketState>& state) {
  model_.reset();
  for (BucketState& bucket : state) bucket.gradient.reset();
}

// Makes the model from the moved state. Returns what some rank lacks for it; then no rank has a model.
std::optional<Obstacle> Trainer::assemble(const Configuration& configuration, std::vector<BucketState>& state,
                                          const std::vector<BucketOffsets>& buckets, SwitchPhases& phases) {
  phases.begin("building the model");
  const at::ScalarType dtype = compute_dtype(config_.execution.precision);
  std::optional<Obstacle> obstacle;
  const bool fits = fits_into_memory([&] {
    for (size_t bucket = 0; bucket < buckets.size(); ++bucket) {
      state[bucket].gradient = allocate_gradient(buckets[bucket], dtype, mover_.memory());
    }
    model_ = std::make_unique<RankModel>(config_, configuration.strategy, world_, recorder_, state);
    model_->optimizer->set_steps(state_.optimizer_steps);
    obstacle = rehearse(configuration);
  });
  if (!fits) obstacle = Obstacle{"there is no memory for its gradients", true};
  obstacle = agree_on_obstacle(obstacle, 0, world_.everyone());
  if (obstacle) release_model(state);
  return obstacle;
}

// The memory that a step is predicted to need on this rank, in addition to its state.
double Trainer::step_bytes(const Configuration& configuration) const {
  const MeshCoordinates here = Mesh(configuration.strategy).coordinates(world_.rank());
  const PredictedJob job = predicted_job(config_);
  TrainingSystem system = training_system_of(config_);
  // The device's context and the communicators are allocated already.
  system.memory.fixed_bytes = 0;
  system.memory.communicators = {};
  MemoryModel model(job.model, job.sequence_length, system);
  const MemoryParts parts = model.predict_every_rank(configuration)[here.pipeline];
  return parts.activations + parts.logits + parts.workspace;
}

std::optional<Obstacle> Trainer::obstacle_to_branch(int64_t global_batch) const {
  Configuration configuration = executed_;
  configuration.global_batch = global_batch;
  double bytes = modelled_ ? 0 : step_bytes(configuration);  // the modelled job's step is not this process's
  const auto add = [&](const at::Tensor& tensor) {
    if (tensor.defined()) bytes += static_cast<double>(tensor.nbytes());
  };
  for (const BucketState& bucket : model_->state()) {
    add(bucket.weight);
    add(bucket.gradient);
    if (!bucket.master.is_alias_of(bucket.weight)) add(bucket.master);
    for (const at::Tensor& slot : bucket.slots) add(slot);
  }
  // Ranks on CPUs may all share one machine's memory.
  if (device_.is_cpu()) bytes *= static_cast<double>(world_.size());
  return agree_on_obstacle(lack_of(bytes, "another copy of the state and a step in it"), 0, world_.everyone());
}

// Allocates, for a moment, the memory that a step is predicted to need in addition to its state. Returns the obstacle
// if it is not available.
std::optional<Obstacle> Trainer::rehearse(const Configuration& configuration) const {
  return lack_of(step_bytes(configuration), "a step beside its state");
}

// Allocates so much memory for a moment. Returns the obstacle if it is not available. `what`: what needs it.
std::optional<Obstacle> Trainer::lack_of(double bytes, const char* what) const {
  // Host memory can be overcommitted, and a lack of it shows only on use, so compare with what is available. Memory in
  // this process' cache is reserved already.
  const DeviceMemory memory = device_memory(device_);
  const double fresh = bytes - static_cast<double>(memory.reserved_bytes - memory.used_bytes);
  const bool is_promised = !device_.is_cpu() || fresh <= static_cast<double>(available_memory_bytes());
  const auto take = [&] { kernels::empty({static_cast<int64_t>(bytes)}, at::kByte, device_); };
  if (is_promised && fits_into_memory(take)) return std::nullopt;
  return Obstacle{concat("there is no memory for the ", format_bytes(bytes), " of ", what), true};
}

}  // namespace copus
