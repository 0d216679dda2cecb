#include "copus/train/run/run_loop.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <iterator>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "copus/base/error.h"
#include "copus/base/files/write_error.h"
#include "copus/base/process/monotonic_seconds.h"
#include "copus/base/text/units.h"
#include "copus/checkpoint/checkpoint.h"
#include "copus/description/mesh.h"
#include "copus/orchestrator/controller/run_calibration.h"
#include "copus/report/viewers/timeline.h"
#include "copus/train/run/run_branches.h"
#include "copus/train/run/run_setup.h"
#include "copus/train/step/step_agreement.h"
#include "copus/train/step/step_completion.h"

namespace copus {

namespace {

// Assumed speed of a slow disk, which decides how long before the wall-clock limit the last checkpoint starts.
constexpr double assumed_bytes_per_second = 50e6;

// How long ranks that join or leave wait for a checkpoint in progress. The limit is short because a scheduler that
// takes a machine back may leave it only half a minute.
constexpr std::chrono::seconds longest_wait_for_disk(10);

// Interval at which rank 0 looks for commands while the run is paused.
constexpr std::chrono::milliseconds between_polls(50);

bool is_due(int64_t step, int64_t interval) { return interval > 0 && step % interval == 0; }

// Tells the user which checkpoint is safe after a write has failed.
std::string what_is_safe(const RunPlan& plan) {
  UsableCheckpoint newest;
  try {
    newest = open_newest_usable(checkpoints_path(plan));
  } catch (const std::exception&) {  // the failed write is what the user must know
    return "";
  }
  if (newest.checkpoint) {
    return concat(". The newest whole checkpoint is ", newest.checkpoint->directory().string(),
                  "; --resume continues from there");
  }
  return newest.damage.empty() ? ". The run has written no checkpoint; --resume begins it again" : "";
}

// Returns the seconds to reserve for a checkpoint: three times `longest`, the run's longest checkpoint in seconds, but
// at least 30 s or, if shorter, the assumed time. Before the first checkpoint (`longest` = 0), returns the assumed
// time, in which a slow disk takes weights and optimizer slots in fp32.
double checkpoint_seconds(const RunConfig& config, double longest) {
  constexpr double margin = 3, least = 30;
  const int64_t bytes_of_parameter = size_of(DType::f32) + slot_bytes(config.optimizer.kind);
  const double assumed =
      static_cast<double>(bytes_of_parameter * count_parameters(config.model)) / assumed_bytes_per_second;
  return longest > 0 ? std::max(margin * longest, std::min(assumed, least)) : assumed;
}

}  // namespace

PassedBoundary begin_run(const RunPlan& plan, const Dataset& dataset, Trainer& trainer, World& world, bool have_cores,
                         RunLeader* leader) {
  const bool can_judge_speed = agree_to_judge_speed(plan.config, trainer.device(), have_cores, world);
  trainer.gather_seconds(can_judge_speed);
  if (leader != nullptr) {
    leader->begin(can_judge_speed);
    leader->introduce(dataset, world);
  }
  PassedBoundary passed{.written = trainer.state().step};
  if (plan.checkpoint) passed.last_checkpoint = trainer.state().step;
  passed.may_owe_evaluation = plan.checkpoint.has_value();
  return passed;
}

RunLoop::RunLoop(const RunPlan& plan, const Dataset& dataset, Trainer& trainer, World& world, const StopRequest& stop,
                 RunLeader* leader, Membership* membership)
    : plan_(plan),
      dataset_(dataset),
      trainer_(trainer),
      world_(world),
      stop_(stop),
      leader_(leader),
      membership_(membership) {}

std::optional<RunEnd> RunLoop::until_end(PassedBoundary& passed) {
  try {
    return loop_until_end(passed);
  } catch (const TrainingDiverged& divergence) {
    diverged_ = true;
    complete_checkpoint_before(divergence);
    throw;
  } catch (const WriteError& error) {
    throw UserError(concat(error.what(), what_is_safe(plan_)));
  }
}

// Completes the checkpoint that was started before the run diverged, because the user resumes from it.
void RunLoop::complete_checkpoint_before(const UserError& divergence) {
  try {
    checkpoints_->finish();
  } catch (const UserError& error) {
    throw UserError(concat(divergence.what(), "; and the latest checkpoint is not complete: ", error.what()));
  }
}

std::optional<RunEnd> RunLoop::loop_until_end(PassedBoundary& passed) {
  // If messages move the clock, their number must not depend on the disk.
  const bool waits = plan_.config.cluster.clock == ClockKind::virtual_time;
  checkpoints_.emplace(
      checkpoints_path(plan_), leader_ ? &leader_->output().checkpoints() : nullptr, world_, plan_.config.wait_limit,
      [this] { return gives_up_checkpoint(); }, waits);
  checkpoints_->count_earlier(passed.longest_checkpoint);
  if (leader_) leader_->go_on_adapting(trainer_);
  share_critical_batches();
  if (passed.record) at_boundary(*passed.record, passed);
  if (std::exchange(passed.may_owe_evaluation, false)) evaluate_what_is_owed();
  note_change(passed);
  while (!trainer_.finished() && end_reason() == StopReason::none) {
    if (!await_shards(passed)) {
      if (end_reason() != StopReason::none) break;
      if (!checkpoints_->finish()) note_given_up(passed);
      return std::nullopt;
    }
    passed.record = step(passed);
    passed.last_switch.reset();
    note_progress();
    checkpoints_->poll();
    const StopReason halt = trainer_.stop_reason();
    at_boundary(*passed.record, passed);
    if (end_reason() != StopReason::none) break;
    if (halt == StopReason::checkpoint) checkpoint_by_time(passed);
    if (halt == StopReason::pause && !trainer_.finished()) stand_still(passed);
    if ((halt == StopReason::regroup || stopped_while_paused_ == StopReason::regroup) && !trainer_.finished()) {
      if (!checkpoints_->finish()) note_given_up(passed);
      return std::nullopt;
    }
  }
  trainer_.gather_seconds_now();
  if (leader_) leader_->note_stragglers(trainer_);
  if (lacks_timeline(passed)) gather_timeline(passed);
  checkpoint(passed);
  if (trainer_.finished() && !held_out_loss_) held_out_loss_ = evaluate();
  return finish(passed);
}

// Does all work that is due after a step, or the remaining work if ranks were interrupted there.
void RunLoop::at_boundary(StepRecord record, PassedBoundary& passed) {
  passed.longest_checkpoint = checkpoints_->longest_seconds();
  held_out_loss_.reset();
  const bool calibrates = trainer_.stop_reason() == StopReason::calibrate && !trainer_.finished();
  const bool is_new = passed.written < record.step;
  if (is_new) {
    if (trainer_.finished() || is_evaluation_due(record, plan_.config)) {
      held_out_loss_ = evaluate();
      if (held_out_loss_) {
        record.held_out_loss = held_out_loss_->mean;
        record.held_out_losses = held_out_loss_->sources;
      }
    }
    if (leader_) leader_->log_step(record, trainer_);
    passed.written = record.step;
    if (leader_ && passed.last_switch) leader_->log_switch(*passed.last_switch, trainer_);  // made under another leader
    make_switch(passed);
  }
  note_change(passed);
  note_lost_calibration(passed);
  if (is_new && leader_) leader_->obey_commands(record.step, /*standing=*/false, trainer_);
  // Comes before this step's checkpoint, which contains the time that branches took.
  if (is_new && calibrates) calibrate(passed);
  // Ranks that join or leave do not wait for a checkpoint that is due now; it is written right afterwards.
  const bool regroups = trainer_.stop_reason() == StopReason::regroup || stopped_while_paused_ == StopReason::regroup;
  const bool goes_on = end_reason() == StopReason::none && !regroups;
  if (goes_on && is_sound() && is_due(record.step, plan_.config.checkpoint.interval)) checkpoint(passed);
}

StepRecord RunLoop::step(PassedBoundary& passed) {
  const bool trace = steps_ > 0 && lacks_timeline(passed);  // the first step is a warm-up
  if (trace) trainer_.trace_next_step();
  const double begin = monotonic_seconds();
  StepRecord record = trainer_.step([&] { return reason_to_halt(passed); });
  longest_step_ = std::max(longest_step_, monotonic_seconds() - begin);
  ++steps_;
  if (leader_) leader_->note_stragglers(trainer_);
  if (trace && ++traced_ == plan_.trace_steps) gather_timeline(passed);
  return record;
}

// Reports to the launcher, once, that training has passed the step at which the job's ranks met.
void RunLoop::note_progress() {
  if (!leader_ || membership_ == nullptr || has_advanced_ || trainer_.state().step <= plan_.logged_step) return;
  membership_->advances();
  has_advanced_ = true;
}

// Records that ranks have joined or left.
void RunLoop::note_change(PassedBoundary& passed) {
  const std::optional<RanksChanged> change = std::exchange(passed.change, std::nullopt);
  if (change && leader_) leader_->log_ranks_changed(*change, trainer_);
}

// Makes a switch that is due.
void RunLoop::make_switch(PassedBoundary& passed) {
  const std::optional<SwitchReport> report = trainer_.switch_if_due();
  if (!report) return;
  passed.last_switch = report;
  if (!leader_) return;
  leader_->note_stragglers(trainer_);
  leader_->log_switch(*report, trainer_);
}

// Waits until the next step's shards are on all machines. Returns false if there is a reason to stop or regroup. The
// wait is between steps, so that no step appears slow. Ranks keep exchanging messages, so that no other timeout than
// the one for shards ends the wait.
bool RunLoop::await_shards(PassedBoundary& passed) {
  if (!plan_.config.data.shuffle_shards) return true;
  list_shards();
  const int64_t step = trainer_.state().step;
  const uint64_t first = trainer_.state().data_position();
  const int64_t count = trainer_.configuration().global_batch;  // samples of the next step
  std::optional<double> waits_since;
  double progress_at = monotonic_seconds();
  std::optional<int64_t> missing_before;  // bytes on all ranks
  while (true) {
    // A shard that is too long stays too long, so all ranks fail at once.
    std::optional<Obstacle> mine;
    bool is_wrong = false;
    try {
      if (const auto missing = dataset_.missing_shard(first, count)) mine = Obstacle{*missing};
    } catch (const UserError& error) {
      mine = Obstacle{error.what()};
      is_wrong = true;
    }
    const std::optional<Obstacle> gap = agree_on_obstacle(mine, 0, world_.everyone());
    if (!gap) break;
    // A rank with a wrong shard reports it, even if another rank lacks a shard.
    const std::optional<Obstacle> wrong = agree_on_obstacle(is_wrong ? mine : std::nullopt, 0, world_.everyone());
    const std::string what = world_.size() == 1 ? mine->reason : wrong ? wrong->reason : gap->reason;
    if (!waits_since) {
      waits_since = monotonic_seconds();
      world_.health().set_place(concat("waits for a shard after step ", step));
      if (leader_) leader_->output().note(concat("step ", step, ": waits for the data: ", what));
    }
    // Whether rank 0 gives up, and the bytes missing on all ranks.
    const bool is_late = leader_ && monotonic_seconds() - progress_at > plan_.config.data.shard_timeout;
    std::array<int64_t, 2> sums = {is_late ? 1 : 0, dataset_.missing_shard_bytes(first, count)};
    world_.everyone().all_reduce(sums.data(), std::ssize(sums), DataType::int64);
    // Arriving bytes restart the timeout. A vanishing shard does not, but its bytes do when they return.
    if (!missing_before || sums[1] < *missing_before) progress_at = monotonic_seconds();
    missing_before = sums[1];
    if (sums[0] > 0 || wrong) {
      if (step > 0) checkpoint(passed);
      checkpoints_->finish();
      if (wrong) throw UserError(what);
      throw UserError(concat("step ", step + 1, " needs a shard that did not come within ",
                             format_duration(plan_.config.data.shard_timeout), " (data.shard_timeout): ", what,
                             "; bring it there whole (tools/fetch_shards.py fetches the shards that shards.txt in the ",
                             "run directory lists, --ahead of them at a time), then resume the run with --resume"));
    }
    std::this_thread::sleep_for(between_polls);
    checkpoints_->poll();
    if (leader_) leader_->obey_commands(step, /*standing=*/true, trainer_);
    if (passed.last_checkpoint == step) passed.checkpointed_at = std::chrono::steady_clock::now();
    const StopReason reason = agree_on_stop(reason_to_halt(passed), world_.everyone());
    if (reason == StopReason::none) continue;
    if (reason == StopReason::checkpoint) {
      checkpoint_again(passed);
    } else if (reason == StopReason::pause) {
      stand_still(passed);
      progress_at = monotonic_seconds();
      if (stopped_while_paused_ != StopReason::none) return false;
    } else {
      stopped_while_paused_ = reason;
      return false;
    }
  }
  if (waits_since && leader_) {
    leader_->output().note(
        concat("step ", step, ": the data came after ", format_duration(monotonic_seconds() - *waits_since)));
  }
  return true;
}

// Lists the shards that the run needs next, for the program that fetches them.
void RunLoop::list_shards() {
  constexpr int64_t least_listed = 256;
  if (!leader_) return;
  const uint64_t first = trainer_.state().data_position();
  const int64_t needed = dataset_.num_shards_of(first, trainer_.configuration().global_batch);
  leader_->output().list_shards(dataset_.shards_from(first, std::max(least_listed, 2 * needed)), needed);
}

// Pauses the run until the user continues or stops it. Rank 0 sends messages often enough that no wait of another rank
// times out.
void RunLoop::stand_still(PassedBoundary& passed) {
  const int64_t step = trainer_.state().step;
  world_.health().set_place(concat("paused after step ", step));
  if (leader_) leader_->output().note(concat("step ", step, ": paused"));
  StopReason reason = StopReason::pause;
  while (reason == StopReason::pause || reason == StopReason::checkpoint) {
    if (reason == StopReason::checkpoint) checkpoint_again(passed);
    checkpoints_->poll();
    if (leader_) {
      std::this_thread::sleep_for(between_polls);
      leader_->obey_commands(step, /*standing=*/true, trainer_);
    }
    const bool has_news = passed.last_checkpoint != step;
    if (!has_news) passed.checkpointed_at = std::chrono::steady_clock::now();
    reason = agree_on_stop(reason_to_halt(passed), world_.everyone());
  }
  if (reason == StopReason::calibrate) reason = StopReason::none;  // due again after the next step
  stopped_while_paused_ = reason;
  if (leader_ && reason == StopReason::none) leader_->output().note(concat("step ", step, ": goes on"));
}

// Measures the critical batch by branches, if a calibration is still due after this step. An interrupted calibration
// counts as done, because otherwise a run that is often interrupted would repeat it for ever.
void RunLoop::calibrate(PassedBoundary& passed) {
  CalibrationRequest request;
  if (leader_) request = leader_->calibration_due().value_or(request);
  static_assert(std::is_trivially_copyable_v<CalibrationRequest>);
  world_.everyone().broadcast(&request, sizeof(request), DataType::byte, 0);
  if (request.repetitions == 0) return;
  passed.calibration = calibration_of(request, *passed.record);
  passed.calibration->reason = "a rank was lost";
  if (leader_) leader_->begin_calibration(request, passed.record->step);
  const double step_of_branch =
      longest_step_ * static_cast<double>(branch_batch_of(request.batch)) / static_cast<double>(request.batch);
  const auto stop = [&] {
    const StopReason reason = reason_to_stop(step_of_branch);
    const bool regroups = leader_ != nullptr && membership_ != nullptr && membership_->regroup_wanted();
    return reason == StopReason::none && regroups ? StopReason::regroup : reason;
  };
  const auto between_branches = [&] {
    checkpoints_->poll();
    if (leader_) leader_->obey_commands(passed.record->step, /*standing=*/false, trainer_);
  };
  const BranchesEnd end =
      train_branches(plan_.config, request, *passed.record, trainer_, dataset_, world_, stop, between_branches);
  stopped_while_paused_ = end.stopped;
  trainer_.spend(end.calibration.seconds);
  passed.calibration.reset();
  if (leader_) leader_->log_calibration(end.calibration);
  share_critical_batches();
}

// Logs a calibration that ended because a rank was lost. Ranks that were spares then may remember an older calibration.
void RunLoop::note_lost_calibration(PassedBoundary& passed) {
  const std::optional<RunCalibration> calibration = std::exchange(passed.calibration, std::nullopt);
  if (leader_ && calibration && calibration->step == trainer_.state().step) leader_->log_calibration(*calibration);
}

// Returns whether a calibration is due and would end before the time limit. This needs a real clock, because other
// clocks do not show how long branches take.
bool RunLoop::is_calibration_due() const {
  // Branches read far ahead, where shards may still be missing.
  if (!is_sound() || dataset_.held_out_samples() == 0 || plan_.config.data.shuffle_shards) return false;
  const std::optional<CalibrationRequest> request = leader_->calibration_due();
  if (!request || plan_.config.cluster.clock != ClockKind::real) return request.has_value();
  constexpr double margin = 1.5;
  return stop_.has_time_for(margin * leader_->seconds_of(*request));
}

// Sends the measured critical batches to all ranks, which use them in step records.
void RunLoop::share_critical_batches() {
  if (!RunCalibrations(plan_.config).are_allowed()) return;
  std::vector<double> values;
  if (leader_) {
    for (const MeasuredCriticalBatch& one : leader_->critical_batches()) {
      values.insert(values.end(), {one.tokens, one.noise_scale, one.critical_batch, one.deviation});
    }
  }
  int64_t count = std::ssize(values);
  world_.everyone().broadcast(&count, 1, DataType::int64, 0);
  if (count == 0) return;
  values.resize(static_cast<size_t>(count));
  world_.everyone().broadcast(values.data(), count, DataType::float64, 0);
  std::vector<MeasuredCriticalBatch> critical_batches;
  for (size_t i = 0; i < values.size(); i += 4) {
    critical_batches.push_back({values[i], values[i + 1], values[i + 2], values[i + 3]});
  }
  trainer_.learn(critical_batches);
}

// Returns the reason to stop, if any. The time limit leaves time for the checkpoint and for a next step that is longer
// than any before. If ranks may join and leave, a rank that receives a signal asks to leave; the launcher decides
// whether the run ends.
StopReason RunLoop::reason_to_stop(double longest_step) const {
  const double to_write = checkpoint_seconds(plan_.config, checkpoints_->longest_seconds());
  const StopReason reason = stop_.reason(to_write + 2 * std::max(longest_step_, longest_step) + seconds_to_draw());
  if (membership_ == nullptr || (reason != StopReason::terminate && reason != StopReason::none)) return reason;
  if (reason == StopReason::terminate) membership_->ask_to_leave();
  return membership_->stop_wanted() ? StopReason::terminate : StopReason::none;
}

// Returns the expected seconds to draw the run's page when the run ends: at most three times the seconds that this
// process took to start. The time is bounded, because a page reads only a part of a long log. In the only run that was
// measured, the process took 0.35 s to start and 1 s to draw.
double RunLoop::seconds_to_draw() const {
  constexpr double starts = 3;
  return leader_ ? starts * stop_.seconds_to_end() * leader_->output().page_share() : 0;
}

// Returns whether a checkpoint is overdue by rank 0's clock; other ranks learn this like any reason to halt. There are
// no checkpoints by time if messages advance the run's clock, because the number of messages must not depend on the
// machine's clock.
bool RunLoop::is_checkpoint_overdue(const PassedBoundary& passed) const {
  const int64_t interval = plan_.config.checkpoint.interval_seconds;
  if (interval == 0 || plan_.config.cluster.clock == ClockKind::virtual_time) return false;
  return std::chrono::steady_clock::now() - passed.checkpointed_at >= std::chrono::seconds(interval);
}

// Returns reason_to_stop(), or a reason to leave the step loop for a moment: ranks join or leave, or a checkpoint, a
// pause or a calibration is due.
StopReason RunLoop::reason_to_halt(const PassedBoundary& passed) const {
  const StopReason reason = reason_to_stop();
  if (reason != StopReason::none || leader_ == nullptr) return reason;
  if (membership_ != nullptr && membership_->regroup_wanted()) return StopReason::regroup;
  if (is_sound() && (leader_->wants_checkpoint() || is_checkpoint_overdue(passed))) return StopReason::checkpoint;
  if (leader_->control().pause_wanted()) return StopReason::pause;
  return is_calibration_due() ? StopReason::calibrate : reason;
}

// Called on rank 0 while all ranks wait for a disk. Returns whether ranks that want to join or leave have waited long
// enough.
bool RunLoop::gives_up_checkpoint() {
  if (membership_ == nullptr || diverged_ || trainer_.finished() || end_reason() != StopReason::none) return false;
  if (!membership_->regroup_wanted()) return false;
  const auto now = std::chrono::steady_clock::now();
  if (!regroup_wanted_since_) regroup_wanted_since_ = now;
  return now - *regroup_wanted_since_ >= longest_wait_for_disk;
}

// Drops the checkpoint that was given up. The next step writes another one.
void RunLoop::note_given_up(PassedBoundary& passed) {
  passed.last_checkpoint.reset();
  if (!leader_) return;
  leader_->ask_for_checkpoint();
  leader_->output().note(
      concat("step ", trainer_.state().step, ": the checkpoint is given up and will be written again: ",
             "ranks come or go, and the disk has not taken it within ", longest_wait_for_disk.count(), " s"));
}

// Returns the reason why the run ends, if any; the same on all ranks.
StopReason RunLoop::end_reason() const {
  const bool was_paused = stopped_while_paused_ != StopReason::none;
  const StopReason reason = was_paused ? stopped_while_paused_ : trainer_.stop_reason();
  const bool goes_on = reason == StopReason::pause || reason == StopReason::regroup ||
                       reason == StopReason::checkpoint || reason == StopReason::calibrate;
  return goes_on ? StopReason::none : reason;
}

// A process that has made no step evaluates regardless of its time limit. Otherwise a run in which only an evaluation
// is missing could never end if its time limit is shorter than its start-up.
std::optional<HeldOutLoss> RunLoop::evaluate() {
  return trainer_.evaluate([this] {
    const StopReason reason = reason_to_stop();
    return reason == StopReason::time_limit && steps_ == 0 ? StopReason::none : reason;
  });
}

// Returns whether a checkpoint of the weights may replace older ones. A skipped step may mean damaged weights. Then no
// checkpoint is due, and one that is written because the run stops leaves the older ones.
bool RunLoop::is_sound() const { return trainer_.state().skipped_in_a_row == 0; }

// Makes up for an evaluation that a signal cut short before the run was resumed.
void RunLoop::evaluate_what_is_owed() {
  int64_t owes = leader_ && leader_->output().owes_evaluation(trainer_.finished());
  world_.everyone().broadcast(&owes, 1, DataType::int64, 0);
  if (owes == 0) return;
  held_out_loss_ = evaluate();
  if (leader_ && held_out_loss_) leader_->output().add_owed_evaluation(*held_out_loss_);
}

void RunLoop::checkpoint(PassedBoundary& passed) {
  passed.checkpointed_at = std::chrono::steady_clock::now();
  if (passed.last_checkpoint == trainer_.state().step) return;
  if (!checkpoints_->finish()) return note_given_up(passed);
  if (leader_) {
    leader_->output().note_undeleted_checkpoint();
    leader_->sync_logs();  // first, so that the logs have all steps of any visible checkpoint
  }
  if (!checkpoints_->write(trainer_, to_toml(plan_.config), /*deletes_older=*/is_sound())) return;
  if (leader_) {
    leader_->mark_checkpoint_begun();
    if (const auto learned = leader_->profile()) leader_->output().add(*learned);
  }
  passed.last_checkpoint = trainer_.state().step;
}

// Writes a checkpoint that is due by time, and reports its cost.
void RunLoop::checkpoint_by_time(PassedBoundary& passed) {
  const bool is_written = passed.last_checkpoint == trainer_.state().step;
  if (is_written || !is_sound()) return;
  checkpoint(passed);
  if (!leader_) return;
  const std::chrono::duration<double> stood_still = std::chrono::steady_clock::now() - passed.checkpointed_at;
  leader_->output().note(concat("step ", trainer_.state().step, ": checkpoint; training stood still for ",
                                format_duration(stood_still.count())));
}

// Writes a checkpoint even if there is one of this step, which may be lost.
void RunLoop::checkpoint_again(PassedBoundary& passed) {
  passed.last_checkpoint.reset();
  checkpoint(passed);
}

// Completes the final checkpoint, or writes it again if the run directory has been deleted meanwhile.
void RunLoop::keep_last_checkpoint(PassedBoundary& passed) {
  const auto is_lost = [this] {
    checkpoints_->finish();
    if (leader_) {
      leader_->output().note_undeleted_checkpoint();
      leader_->keep_directory();
    }
    int64_t lost = leader_ && (leader_->wants_checkpoint() || !leader_->output().checkpoints().is_in_place());
    world_.everyone().broadcast(&lost, 1, DataType::int64, 0);
    return lost != 0;
  };
  if (!is_lost()) return;
  checkpoint_again(passed);
  if (!is_lost()) return;
  throw UserError(concat("the run directory ", plan_.directory.string(), " was deleted, and cannot be made again: the ",
                         "state after step ", trainer_.state().step, " is lost"));
}

// Returns whether the job still has to write a timeline. Ranks that come or go end a timeline that is not complete, and
// the next RunLoop begins it again.
bool RunLoop::lacks_timeline(const PassedBoundary& passed) const {
  return plan_.trace_steps > 0 && !passed.has_timeline;
}

void RunLoop::gather_timeline(PassedBoundary& passed) {
  const MeshCoordinates here = Mesh(trainer_.configuration().strategy).coordinates(world_.rank());
  const RankTimeline mine{
      concat("rank ", world_.rank(), " (dp ", here.data, ", tp ", here.tensor, ", pp ", here.pipeline, ")"),
      trainer_.events()};
  const std::vector<std::string> all = gather_bytes(to_bytes(mine), world_);
  passed.has_timeline = true;
  if (!leader_) return;
  std::vector<RankTimeline> timelines;
  std::transform(all.begin(), all.end(), std::back_inserter(timelines), timeline_from_bytes);
  leader_->output().timeline(timelines);
}

RunEnd RunLoop::finish(PassedBoundary& passed) {
  keep_last_checkpoint(passed);
  const StopReason reason = end_reason();
  const bool done = trainer_.finished() && (held_out_loss_ || reason == StopReason::none);
  if (leader_) {
    RunOutput& output = leader_->output();
    const char* const early = reason == StopReason::time_limit ? "time limit" : "interrupted";
    constexpr double hardly_any = 0.1;
    const double to_draw = seconds_to_draw();
    const bool draws_page = reason != StopReason::time_limit || to_draw < hardly_any || stop_.has_time_for(to_draw);
    const RunSummary summary =
        output.finish(trainer_, done ? held_out_loss_ : std::nullopt, done ? "done" : early, draws_page);
    if (done) {
      output.say_goodbye(summary, trainer_, dataset_, leader_->conclusion());
    } else {
      output.say_how_to_go_on(trainer_, reason);
    }
  }
  world_.everyone().barrier();  // waits for rank 0, whose writes may fail
  if (done) return RunEnd::done;
  return reason == StopReason::interrupt ? RunEnd::interrupted : RunEnd::requeue;
}

}  // namespace copus
