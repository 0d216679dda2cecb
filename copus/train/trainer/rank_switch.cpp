#include "copus/train/trainer/rank_switch.h"

#include <algorithm>
#include <array>
#include <map>
#include <string>
#include <utility>

#include "copus/base/error.h"
#include "copus/comm/rank_failure.h"
#include "copus/description/configuration_text.h"
#include "copus/model/kernels/kernels.h"
#include "copus/model/kernels/precision.h"
#include "copus/model/memory/device_memory.h"
#include "copus/orchestrator/predictions/step_time_learner.h"
#include "copus/performance/memory.h"
#include "copus/performance/training_system.h"
#include "copus/placement/copies.h"
#include "copus/train/step/step_agreement.h"
#include "copus/train/trainer/step_memory.h"

namespace copus {

namespace {

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

  // Ends the previous phase and begins `phase`. `detail`: progress within the phase, reported but not timed separately.
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

RankSwitch::RankSwitch(RankTraining& training, StateMover& mover, Survival& survival)
    : training_(training), config_(training.config), world_(training.world), mover_(mover), survival_(survival) {}

// Connects the groups of the new layout before anything moves, so that training in the old layout can continue if this
// fails.
PendingSwitch RankSwitch::prepare(const SwitchIntent& intent) {
  PendingSwitch pending{.intent = intent, .refusal = obstacle_to(intent.configuration)};
  const ParallelStrategy& strategy = intent.configuration.strategy;
  if (pending.refusal || strategy == training_.configuration().strategy) return pending;
  const double begin = world_.clock().now();
  pending.refusal = open_groups(intent.configuration);
  pending.opening_seconds = world_.clock().now() - begin;
  if (pending.refusal) {  // no switch follows in which the ranks would agree on the seconds
    world_.everyone().all_reduce(&pending.opening_seconds, 1, DataType::float64, Reduction::maximum);
    return pending;
  }
  const RankModel& model = *training_.model;
  pending.preparation = mover_.prepare(request_to(strategy), world_.rank(), model.state(),
                                       model.parameters.compute_dtype(), /*keeps_old=*/survival_.is_on());
  return pending;
}

// The obstacles that every rank can find without the others.
std::optional<Obstacle> RankSwitch::obstacle_to(const Configuration& configuration) {
  const int64_t ranks = configuration.strategy.world_size();
  if (ranks != world_.size()) return Obstacle{concat("a layout of ", ranks, " ranks in a job of ", world_.size())};
  if (const auto reason = infeasible_reason(config_.model, configuration, config_.train.sequence_length)) {
    return Obstacle{*reason};
  }
  if (config_.heal.machines && survival_.is_on()) {
    std::vector<int64_t> machines;
    for (const int64_t process : mover_.state_in_arenas().processes) {
      machines.push_back(mover_.arena()->machine_of(process));
    }
    // If the current layout does not survive the loss of a machine either, nothing is lost by another such layout.
    if (outlives_any_machine(training_.configuration().strategy, machines) &&
        !outlives_any_machine(configuration.strategy, machines)) {
      return Obstacle{"some training state would be on one machine alone (heal.machines)"};
    }
  }
  if (const auto reason = out_of_memory_reason(memory_model_of(config_).predict(configuration),
                                               memory_of_rank(config_.cluster.description, ranks))) {
    return Obstacle{*reason, true};
  }
  return std::nullopt;
}

// Connects the groups of a layout in addition to the groups of the current one. Every rank calls it and returns the
// same result.
std::optional<Obstacle> RankSwitch::open_groups(const Configuration& configuration) {
  std::vector<GroupUse> groups = groups_of(config_, training_.configuration());
  const std::vector<GroupUse> new_groups = groups_of(config_, configuration);
  groups.insert(groups.end(), new_groups.begin(), new_groups.end());
  release_cached_memory(training_.device);
  // The steps until the switch need their memory again, so reserve it while connections are made.
  at::Tensor memory_of_step;
  if (!training_.device.is_cpu()) {
    const auto bytes = static_cast<int64_t>(step_bytes(config_, training_.configuration(), world_.rank()));
    static_cast<void>(fits_into_memory([&] { memory_of_step = kernels::empty({bytes}, at::kByte, training_.device); }));
  }
  const std::optional<std::string> lack = world_.prepare(groups);
  if (memory_of_step.defined()) {
    // In the cache this single block would serve only requests of its size.
    memory_of_step.reset();
    release_cached_memory(training_.device);
  }
  if (lack) return Obstacle{*lack, true};
  return std::nullopt;
}

RelayoutRequest RankSwitch::request_to(const ParallelStrategy& strategy) const {
  return {.model = config_.model,
          .sequence_length = config_.train.sequence_length,
          .from = training_.configuration().strategy,
          .to = strategy,
          .recipe = training_recipe(config_.optimizer, training_.model->parameters.compute_dtype()),
          .ranks_per_node = config_.cluster.description.ranks_per_node};
}

double RankSwitch::commit(PendingSwitch& pending, SwitchReport& report) {
  const double arrived = world_.clock().now();
  SwitchPhases phases(world_, training_.recorder, report.after_step);
  phases.add("building groups", pending.opening_seconds);
  double begin = arrived;
  if (pending.preparation.valid()) {
    // After the barrier ranks may read each other's unsharded weights.
    training_.model->weights.finish();
    // The pause begins when the last rank has ended the step, since the others would have waited for it in any case.
    phases.wait_for_all_ranks();
    training_.seconds.gather(world_);
    begin = world_.clock().now();
    change_layout(pending, phases, report);
  } else if (report.to.micro_batch > report.from.micro_batch) {
    if (const auto obstacle = agree_on_obstacle(rehearse(report.to), 0, world_.everyone())) {
      refuse(report, SwitchReport::Outcome::vetoed, *obstacle);
    } else if (const auto lack = world_.prepare(groups_of(config_, report.to))) {
      refuse(report, SwitchReport::Outcome::vetoed, Obstacle{*lack, true});
    }
  }
  report.phase_seconds = phases.end();
  report.pause_seconds = pending.opening_seconds + world_.clock().now() - begin;
  if (report.to.strategy == report.from.strategy) return 0;
  // All ranks report the times of the slowest rank. The run's clock advances by the time of rank 0, which includes its
  // wait for the other ranks to end their steps, but at least by the longest pause of any rank.
  const double by_clock =
      world_.rank() == 0 ? pending.opening_seconds + world_.clock().now() - arrived : report.pause_seconds;
  std::array<double, 4> slowest = {report.pause_seconds, report.prepare_seconds, static_cast<double>(report.peak_bytes),
                                   by_clock};
  world_.everyone().all_reduce(slowest.data(), slowest.size(), DataType::float64, Reduction::maximum);
  report.pause_seconds = slowest[0];
  report.prepare_seconds = slowest[1];
  report.peak_bytes = static_cast<int64_t>(slowest[2]);
  return slowest[3];
}

void RankSwitch::change_layout(PendingSwitch& pending, SwitchPhases& phases, SwitchReport& report) {
  phases.begin("preparing");
  const PreparedRelayout prepared = pending.preparation.get();
  const RelayoutPlan& plan = prepared.plan;
  report.prepare_seconds = prepared.seconds;
  phases.begin("agreeing");
  if (const auto obstacle = agree_on_obstacle(prepared.veto, plan.hash, world_.everyone())) {
    refuse(report, SwitchReport::Outcome::vetoed, *obstacle);
    world_.require(groups_of(config_, report.from));  // closes groups that are not needed
    return;
  }
  report.bytes_copied = plan.bytes_copied;
  report.bytes_received = plan.bytes_received;
  report.peak_bound_bytes = plan.peak_bound_bytes;
  std::optional<StateHash> before;
  if (config_.adapt.verify) {
    phases.begin("verifying");
    before = training_.hash_of_state();
    check_whole(*before, report);
  }
  try {
    move_model(prepared, pending.intent, phases, report);
    if (before) {
      phases.begin("verifying");
      if (const auto damage = training_.hash_of_state().damage_since(*before)) throw InternalError(*damage);
    }
  } catch (const RankFailure&) {
    throw;
  } catch (const std::exception& error) {
    throw InternalError(concat("the change ", describe_change(report.from, report.to), " after step ",
                               report.after_step, " failed, and with it the training state: ", error.what(),
                               ". Go on from the last checkpoint."));
  }
}

// Moves the state into the new layout and builds the model there. If some rank lacks memory for it, returns to the old
// layout. The groups of both layouts stay open until the end, so moving back needs no memory for opening groups.
void RankSwitch::move_model(const PreparedRelayout& prepared, const SwitchIntent& intent, SwitchPhases& phases,
                            SwitchReport& report) {
  const RelayoutRequest request = request_to(intent.configuration.strategy);
  training_.model->executor.finish_sends();
  std::vector<BucketState> state = training_.model->state();
  survival_.release_gradients();  // every rank has made its update, or none would be here
  report.peak_bytes = move(state, request, prepared, phases);
  TrainingState after = after_switch(training_.state, intent);
  if (const std::optional<Obstacle> obstacle = assemble(report.to, state, prepared.buckets, phases)) {
    move_back(request, state, phases, report);
    refuse(report, SwitchReport::Outcome::rolled_back, *obstacle);
    after = training_.state;
  } else {
    world_.require(groups_of(config_, report.to));  // closes groups that are not needed
  }
  survival_.end_move(mover_, state, after, world_.everyone());
  training_.state = after;
  training_.publish_moved_weights();
}

// Replaces the state, which a move with `request` has brought into the new layout, by the state in the old one.
void RankSwitch::move_back(RelayoutRequest request, std::vector<BucketState>& state, SwitchPhases& phases,
                           SwitchReport& report) {
  phases.begin("moving back");
  std::swap(request.from, request.to);
  std::vector<BucketOffsets> buckets;
  if (survival_.is_on()) {  // the old state is still in place
    state = survival_.mine();
    const Placement placement = place(config_.model, request.to, config_.train.sequence_length, world_.rank());
    buckets = arrange_buckets(list_local_parameters(config_.model, placement), placement);
  } else {
    survival_.share_addresses(mover_, state, mover_.state_in_arenas().processes);
    const at::ScalarType dtype = compute_dtype(config_.execution.precision);
    const PreparedRelayout prepared = mover_.prepare(request, world_.rank(), state, dtype, false).get();
    COPUS_CHECK(!prepared.veto, prepared.veto->reason);
    report.peak_bytes = std::max(report.peak_bytes, move(state, request, prepared, phases));
    buckets = prepared.buckets;
  }
  const std::optional<Obstacle> obstacle = assemble(report.from, state, buckets, phases);
  COPUS_CHECK(!obstacle, "nor can the layout before be had again: ", obstacle->reason);
}

// Takes this rank's model apart and moves its whole state. Returns the peak of the state bytes.
int64_t RankSwitch::move(std::vector<BucketState>& state, const RelayoutRequest& request,
                         const PreparedRelayout& prepared, SwitchPhases& phases) {
  const at::ScalarType dtype = compute_dtype(config_.execution.precision);
  release_model(state);
  RankClock& clock = world_.clock();
  const double begin = clock.now();
  clock.begin_communication();
  const int64_t peak =
      mover_.move(prepared, dtype, state, [&](const std::string& round) { phases.begin("moving the state", round); });
  clock.end_communication();
  // Adds the predicted time of the cluster's links, because here the state is copied within one machine, without these
  // links.
  if (mover_.reads_arenas() && config_.cluster.clock != ClockKind::real) {
    clock.advance_to(begin + relayout_seconds(request, config_.cluster.description));
  }
  return peak;
}

void RankSwitch::release_model(std::vector<BucketState>& state) {
  training_.model.reset();
  for (BucketState& bucket : state) bucket.gradient.reset();
}

// Makes the model from the moved state. Returns what some rank lacks for it; then no rank has a model.
std::optional<Obstacle> RankSwitch::assemble(const Configuration& configuration, std::vector<BucketState>& state,
                                             const std::vector<BucketOffsets>& buckets, SwitchPhases& phases) {
  phases.begin("building the model");
  const at::ScalarType dtype = compute_dtype(config_.execution.precision);
  std::optional<Obstacle> obstacle;
  const bool fits = fits_into_memory([&] {
    for (size_t bucket = 0; bucket < buckets.size(); ++bucket) {
      state[bucket].gradient = allocate_gradient(buckets[bucket], dtype, mover_.memory());
    }
    training_.model = std::make_unique<RankModel>(config_, configuration.strategy, world_, training_.recorder, state);
    training_.model->optimizer->set_steps(training_.state.optimizer_steps);
    obstacle = rehearse(configuration);
  });
  if (!fits) obstacle = Obstacle{"there is no memory for its gradients", true};
  obstacle = agree_on_obstacle(obstacle, 0, world_.everyone());
  if (obstacle) release_model(state);
  return obstacle;
}

// Allocates, for a moment, the memory that a step is predicted to need in addition to its state. Returns the obstacle
// if it is not available.
std::optional<Obstacle> RankSwitch::rehearse(const Configuration& configuration) const {
  return lack_of_memory(step_bytes(config_, configuration, world_.rank()), "a step beside its state", training_.device);
}

}  // namespace copus
