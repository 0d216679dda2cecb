#include "copus/train/run.h"

#include <algorithm>
#include <iterator>
#include <memory>
#include <optional>
#include <sstream>
#include <thread>
#include <utility>

#include "copus/base/error.h"
#include "copus/checkpoint/checkpoint.h"
#include "copus/checkpoint/hugging_face.h"
#include "copus/comm/timed/timed_world.h"
#include "copus/data/dataset.h"
#include "copus/description/mesh.h"
#include "copus/model/caching_allocator.h"
#include "copus/orchestrator/starting_configuration.h"
#include "copus/orchestrator/step_time_learner.h"
#include "copus/performance/stragglers.h"
#include "copus/report/timeline.h"
#include "copus/train/adaptation.h"
#include "copus/train/device.h"
#include "copus/train/modelled_job.h"
#include "copus/train/run_checkpoints.h"
#include "copus/train/run_control.h"
#include "copus/train/run_output.h"
#include "copus/train/step_agreement.h"
#include "copus/train/stop_request.h"
#include "copus/train/trainer.h"

namespace copus {

namespace {

// Speed of a slow disk: decides how long before the end of the wall clock the checkpoint is begun.
constexpr double assumed_bytes_per_second = 50e6;

// Interval at which rank 0 looks for commands while the run is paused and the other ranks wait for it.
constexpr std::chrono::milliseconds between_looks(50);

bool is_due(int64_t step, int64_t interval) { return interval > 0 && step % interval == 0; }

// Loads the weights that a run begins with. Throws UserError where they are not those of the model that the
// configuration describes.
void load_initial_weights(const RunConfig& config, Trainer& trainer) {
  const HuggingFaceModel model = open_hugging_face(config.init_from);
  std::vector<TensorView> weights;
  for (const auto& [name, weight] : model.weights()) weights.push_back(weight);
  trainer.load(match_parameters(config.model, weights, concat("model.init_from = \"", config.init_from, "\"")));
}

// Seconds that writing weights and two moments in fp32 is assumed to take.
double checkpoint_seconds(const ModelDescription& model) {
  return 3 * sizeof(float) * static_cast<double>(count_parameters(model)) / assumed_bytes_per_second;
}

// Knowledge and controller that rank 0 begins with.
struct Predictions {
  std::optional<StepTimeKnowledge> known;     // empty: nothing predicts how long steps take
  std::optional<ControllerStart> controller;  // empty: nothing adapts
};

// Prepares them. Throws UserError as knowledge_of_run and start_controller do.
Predictions prepare_predictions(const RunPlan& plan, const TrainingState& state) {
  Predictions predictions;
  predictions.known = knowledge_of_run(plan.config, plan.resume ? profile_path(plan) : std::filesystem::path());
  if (plan.config.adapt.policy != PolicyKind::none) {
    predictions.controller.emplace(
        start_controller(plan, state, predictions.known ? predictions.known->profile.knowledge : Knowledge()));
  }
  return predictions;
}

// One rank's run: the work that all ranks do alike, and rank 0's own: it decides, listens to the user and writes.
class Run {
 public:
  Run(const RunPlan& plan, const Dataset& dataset, Trainer& trainer, World& world, const StopRequest& stop)
      : plan_(plan), dataset_(dataset), trainer_(trainer), world_(world), stop_(stop) {
    if (plan.checkpoint) last_checkpoint_ = trainer.state().step;
  }

  // Sets up rank 0's own work, before the loop. `can_judge_speed`: the time that ranks compute tells which of them are
  // slow, and the trainer gathers it.
  void lead(Predictions predictions, bool can_judge_speed) {
    output_.emplace(plan_, trainer_);
    known_ = std::move(predictions.known);
    if (predictions.controller) {
      adaptation_.emplace(plan_, trainer_.state().step, std::move(*predictions.controller),
                          [this](const std::string& line) { output_->note(line); });
    } else if (known_) {
      learner_.emplace(plan_.config, plan_.start, known_->profile.knowledge);
    }
    control_.emplace(plan_, adaptation_ ? &*adaptation_ : nullptr);
    if (can_judge_speed) stragglers_.emplace(plan_.start.strategy);
    output_->introduce(
        dataset_, learner_ ? std::optional(concat(learner_->introduction(), "; ", known_->grounds)) : std::nullopt);
  }

  // Trains until the run is complete or has been told to stop. Returns with a checkpoint under way.
  RunEnd until_end() {
    // The number of messages must not depend on the disk where messages move the clock.
    const bool waits = plan_.config.cluster.clock == ClockKind::virtual_time;
    checkpoints_.emplace(checkpoints_path(plan_), output_ ? &output_->checkpoints() : nullptr, world_, waits);
    if (adaptation_) go_on_adapting();
    while (!trainer_.finished()) {
      StepRecord record = step();
      checkpoints_->look();
      const bool pause = trainer_.stop_reason() == StopReason::pause;
      held_out_loss_.reset();
      if (trainer_.finished() || is_evaluation_due(record, plan_.config)) {
        held_out_loss_ = record.held_out_loss = evaluate();
      }
      if (output_) write_down(record);
      adapt(record);
      if (end_reason() != StopReason::none) break;
      if (is_due(record.step, plan_.config.checkpoint.interval)) checkpoint();
      if (pause && !trainer_.finished()) stand_still();
      if (end_reason() != StopReason::none) break;
    }
    trainer_.gather_seconds_now();
    note_stragglers();
    if (traced_ < plan_.trace_steps) gather_timeline();
    checkpoint();
    if (trainer_.finished() && !held_out_loss_) held_out_loss_ = evaluate();
    return finish();
  }

 private:
  StepRecord step() {
    const bool trace = steps_ > 0 && traced_ < plan_.trace_steps;  // the first step warms up
    if (trace) trainer_.trace_next_step();
    const auto begin = std::chrono::steady_clock::now();
    StepRecord record = trainer_.step([this] { return reason_to_halt(); });
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
    longest_step_ = std::max(longest_step_, seconds.count());
    ++steps_;
    note_stragglers();
    if (trace && ++traced_ == plan_.trace_steps) gather_timeline();
    return record;
  }

  // Judges the steps whose seconds have come to rank 0 since the last call.
  void note_stragglers() {
    if (!stragglers_) return;
    for (const auto& [step, seconds_by_rank] : trainer_.take_seconds()) {
      for (const std::string& note : stragglers_->add(step, seconds_by_rank)) output_->note(note);
    }
  }

  void write_down(StepRecord& record) {
    if (adaptation_) record.predicted_step_seconds = adaptation_->controller().expected_step().seconds;
    if (learner_) {
      record.predicted_step_seconds = learner_->expected().seconds;
      if (!record.skipped()) learner_->add(record.step_seconds);
    }
    output_->add(record, trainer_);
  }

  // Decides, makes the switch that is due, and obeys the user's commands, in this order.
  void adapt(const StepRecord& record) {
    if (adaptation_) {
      const Reaction reaction = adaptation_->after_step(record);
      if (reaction.decision) output_->add(*reaction.decision);
      if (reaction.rate_factor) trainer_.announce_rate_factor(*reaction.rate_factor);
      announce(reaction.intent);
    }
    if (const std::optional<SwitchReport> report = trainer_.switch_if_due()) {
      if (output_) {
        control_->after_switch(*report, adaptation_->after_switch(*report));
        output_->add(*report);
      }
      note_stragglers();
      if (stragglers_ && report->from.strategy != trainer_.configuration().strategy) {
        stragglers_->change_layout(trainer_.configuration().strategy);
      }
    }
    if (control_) announce(control_->look(record.step, /*standing=*/false));
  }

  // Announces what was decided before the run was interrupted and no step has heard of.
  void go_on_adapting() {
    const Controller& controller = adaptation_->controller();
    if (!plan_.config.adapt.advise) trainer_.announce_rate_factor(controller.rate_factor());
    announce(controller.under_way());
  }

  void announce(const std::optional<SwitchIntent>& intent) {
    if (intent) trainer_.announce(*intent);
  }

  // Pauses the run until the user lets it go on or it is told to end. All ranks wait for rank 0's word, which comes
  // often enough for every deadline.
  void stand_still() {
    const int64_t step = trainer_.state().step;
    world_.health().set_place(concat("paused after step ", step));
    if (output_) output_->note(concat("step ", step, ": paused"));
    StopReason reason = StopReason::pause;
    while (reason == StopReason::pause) {
      checkpoints_->look();
      if (control_) {
        std::this_thread::sleep_for(between_looks);
        announce(control_->look(step, /*standing=*/true));
      }
      reason = agree_on_stop(reason_to_halt(), world_.everyone());
    }
    stopped_while_paused_ = reason;
    if (output_ && reason == StopReason::none) output_->note(concat("step ", step, ": goes on"));
  }

  // Reason to stop, with time left for the next step, which may take longer than any before, and the checkpoint.
  StopReason reason_to_stop() const { return stop_.reason(checkpoint_seconds(plan_.config.model) + 2 * longest_step_); }
  StopReason reason_to_halt() const {
    const StopReason reason = reason_to_stop();
    const bool pause = control_ && control_->pause_wanted();
    return reason == StopReason::none && pause ? StopReason::pause : reason;
  }
  // The reason for which the run ends, if it does, as all ranks know it.
  StopReason end_reason() const {
    if (stopped_while_paused_ != StopReason::none) return stopped_while_paused_;
    const StopReason reason = trainer_.stop_reason();
    return reason == StopReason::pause ? StopReason::none : reason;
  }

  std::optional<double> evaluate() {
    return trainer_.held_out_loss([this] { return reason_to_stop(); });
  }

  void checkpoint() {
    if (last_checkpoint_ == trainer_.state().step) return;
    checkpoints_->write(trainer_, to_toml(plan_.config));
    if (const auto learned = profile(); output_ && learned) output_->add(*learned);
    last_checkpoint_ = trainer_.state().step;
  }

  // Profile of the step times that the run has learned; empty where nothing predicts them.
  std::optional<PerformanceProfile> profile() const {
    if (!known_) return std::nullopt;
    return PerformanceProfile{known_->profile.subject,
                              adaptation_ ? adaptation_->controller().knowledge() : learner_->knowledge()};
  }

  void gather_timeline() {
    const MeshCoordinates here = Mesh(trainer_.configuration().strategy).coordinates(world_.rank());
    const RankTimeline mine{
        concat("rank ", world_.rank(), " (dp ", here.data, ", tp ", here.tensor, ", pp ", here.pipeline, ")"),
        trainer_.events()};
    const std::vector<std::string> all = gather_bytes(to_bytes(mine), world_);
    if (!output_) return;
    std::vector<RankTimeline> timelines;
    std::transform(all.begin(), all.end(), std::back_inserter(timelines), timeline_from_bytes);
    output_->timeline(timelines);
  }

  RunEnd finish() {
    checkpoints_->finish();
    const StopReason reason = end_reason();
    const bool done = trainer_.finished() && (held_out_loss_ || reason == StopReason::none);
    if (output_) {
      const char* const early = reason == StopReason::time_limit ? "time limit" : "interrupted";
      output_->finish(trainer_, done ? held_out_loss_ : std::nullopt, done ? "done" : early);
      if (done) {
        output_->say_goodbye(trainer_, dataset_, held_out_loss_, learner_ ? learner_->conclusion() : std::nullopt);
      } else {
        output_->say_how_to_go_on(trainer_, reason);
      }
    }
    world_.everyone().barrier();  // waits for rank 0, which may fail to write
    if (done) return RunEnd::done;
    return reason == StopReason::interrupt ? RunEnd::interrupted : RunEnd::requeue;
  }

  const RunPlan& plan_;
  const Dataset& dataset_;
  Trainer& trainer_;
  World& world_;
  const StopRequest& stop_;
  std::optional<int64_t> last_checkpoint_;  // step of the latest checkpoint
  std::optional<double> held_out_loss_;     // of the weights after the latest step
  StopReason stopped_while_paused_ = StopReason::none;
  double longest_step_ = 0;         // seconds on the real clock
  int64_t steps_ = 0, traced_ = 0;  // counts of this process alone

  // Members on rank 0 alone.
  std::optional<RunOutput> output_;  // first, since it makes the run directory and keeps other processes out of it
  std::optional<StepTimeKnowledge> known_;
  std::optional<StepTimeLearner> learner_;  // only in a run that does not adapt
  std::optional<Adaptation> adaptation_;
  std::optional<RunControl> control_;
  std::optional<StragglerNotes> stragglers_;

  std::optional<RunCheckpoints> checkpoints_;  // after output_, whose folder it refers to
};

// Checks that the job of a modelled clock could begin: its devices are not there to refuse.
void check_modelled_job(const RunPlan& plan) {
  if (!plan.config.cluster.is_modelled()) return;
  const auto obstacle = ModelledJob(plan.config).obstacle_to(plan.start);
  if (!obstacle) return;
  throw UserError(concat(
      "the job that the run stands for cannot begin in ", to_string(plan.start), ": it ", obstacle->reason,
      "; begin in a layout that `copus plan` finds to fit ([parallel], train.micro_batch, ", "train.recompute)"));
}

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  return lines;
}

// Checks that all ranks begin alike. Ranks on several machines may have read other files, and would wait for each other
// for ever or train another model.
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

// Verifies a checkpoint's tensors, each rank some of the files.
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

RunEnd run_training(RunPlan plan, double max_seconds, std::chrono::steady_clock::time_point start, World& world,
                    at::Device device, int64_t local_ranks) {
  install_caching_allocator();
  // Limits the memory of a run that adapts on the CPU, since it may try more than there is and has to notice before the
  // machine does; a GPU refuses by itself.
  // On the modelled clock the described memory is that of other devices.
  const bool is_modelled = plan.config.cluster.is_modelled();
  if (plan.config.adapt.policy != PolicyKind::none && device.is_cpu() && !is_modelled) {
    set_host_memory_limit(static_cast<int64_t>(plan.config.cluster.description.device.memory_bytes));
  }
  const bool have_cores = configure_aten(plan.config.train.threads, local_ranks);
  plan.config.train.precision = agree_on_precision(plan.config.train.precision, device, world);
  if (!plan.checkpoint) plan.start = starting_configuration(plan.config);
  check_modelled_job(plan);
  const TrainConfig& train = plan.config.train;
  const Dataset dataset(plan.config.data, train.sequence_length, plan.config.model.vocab_size, train.seed);
  check_all_ranks_begin_alike(plan, dataset, world);

  const auto train_to_end = [&](Trainer& trainer) {
    check_folder_is_shared(plan.directory, trainer.plan_checkpoint(), world);
    if (plan.checkpoint) {
      verify_together(*plan.checkpoint, world);
      trainer.restore(*plan.checkpoint);
    } else if (!plan.config.init_from.empty()) {
      load_initial_weights(plan.config, trainer);
    }

    std::optional<Predictions> predictions;
    if (world.rank() == 0) predictions = prepare_predictions(plan, trainer.state());

    const StopRequest stop(max_seconds, start);
    world.everyone().barrier();  // all mistakes are found, and no rank reads the run directory any more
    Run run(plan, dataset, trainer, world, stop);
    // A rank on a GPU knows when its host asked for an operation, not how long that took. The ranks of a modelled job
    // are all alike. Rank 0 decides for all, since its machine may not be like theirs.
    const bool can_measure = have_cores && device.is_cpu() && !is_modelled;
    int64_t can_judge_speed = can_measure || plan.config.cluster.clock == ClockKind::virtual_time;
    world.everyone().broadcast(&can_judge_speed, 1, DataType::int64, 0);
    trainer.gather_seconds(can_judge_speed != 0);
    if (world.rank() == 0) run.lead(std::move(*predictions), can_judge_speed != 0);
    return run.until_end();
  };
  return with_trainer(std::make_unique<Trainer>(plan.config, plan.start, dataset, device, world), train_to_end);
}

}  // namespace copus
