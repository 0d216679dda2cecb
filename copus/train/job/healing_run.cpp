#include "copus/train/job/healing_run.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <compare>
#include <filesystem>
#include <functional>
#include <memory>
#include <numeric>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "copus/base/error.h"
#include "copus/base/files/write_all.h"
#include "copus/base/text/printable.h"
#include "copus/base/text/units.h"
#include "copus/checkpoint/checkpoint.h"
#include "copus/comm/first_ranks_world.h"
#include "copus/comm/rank_failure.h"
#include "copus/comm/timed/timed_world.h"
#include "copus/data/dataset.h"
#include "copus/description/configuration_fields.h"
#include "copus/description/configuration_text.h"
#include "copus/orchestrator/controller/regrouping.h"
#include "copus/orchestrator/policies/starting_configuration.h"
#include "copus/placement/copies.h"
#include "copus/report/files/performance_profile.h"
#include "copus/report/logs/run_log.h"
#include "copus/train/job/regroup.h"
#include "copus/train/run/device.h"
#include "copus/train/run/run_data.h"
#include "copus/train/run/run_leader.h"
#include "copus/train/run/run_loop.h"
#include "copus/train/run/run_setup.h"
#include "copus/train/state/state_record.h"
#include "copus/train/step/step_agreement.h"
#include "copus/train/step/stop_request.h"
#include "copus/train/step/training_state.h"
#include "copus/train/trainer/trainer.h"

namespace copus {

namespace {

// The number of consecutive failures at the same step after which the job ends: the step itself probably causes them.
constexpr int64_t most_failures_at_a_step = 10;

// Failures of ranks without a completed step in between.
struct RepeatedFailures {
  int64_t after_step = -1;
  int64_t count = 0;
  auto operator<=>(const RepeatedFailures&) const = default;
};

// While ranks regroup, they move memory and do not wait for disks. A rank then counts as stalled after ten times this
// many seconds without progress. The limit is longer for large states (ten times the time to move the state at 1 GB/s),
// but never exceeds the wait limit.
constexpr double least_seconds_of_progress = 3;
constexpr double expectations_of_a_stall = 10;
constexpr double assumed_bytes_per_second = 1e9;

double seconds_of_moving(const RunConfig& config) {
  // Weights in two precisions, and the optimizer's slots.
  const int64_t bytes_of_parameter = 2 * size_of(DType::f32) + slot_bytes(config.optimizer.kind);
  const auto bytes = static_cast<double>(bytes_of_parameter * count_parameters(config.model));
  const double most = std::max(least_seconds_of_progress, config.wait_limit / expectations_of_a_stall);
  return std::clamp(bytes / assumed_bytes_per_second, least_seconds_of_progress, most);
}

// During its lifetime, a rank without progress for ten times `seconds` counts as stalled.
class ProgressIsExpected {
 public:
  ProgressIsExpected(Health& health, double seconds) : health_(health) { health.set_expected_step_seconds(seconds); }
  ProgressIsExpected(const ProgressIsExpected&) = delete;
  ProgressIsExpected& operator=(const ProgressIsExpected&) = delete;
  ~ProgressIsExpected() { health_.set_expected_step_seconds(0); }

 private:
  Health& health_;
};

constexpr int64_t never = -1;

// What a process knows about the run's past. Processes exchange this first in every epoch, so that a new process knows
// at least as much as the plan that it receives.
struct Past {
  RepeatedFailures failures;
  int64_t begun_in = never;   // latest epoch in which the state was loaded and every rank had its part
  int64_t was_begun = false;  // whether it was begun before all processes that knew more were gone
};

class HealingRun {
 public:
  HealingRun(const RunRequest& request, std::optional<RunPlan> plan, double max_seconds,
             std::chrono::steady_clock::time_point start, Membership& membership, at::Device device,
             int64_t local_ranks)
      : request_(request),
        plan_(std::move(plan)),
        max_seconds_(max_seconds),
        start_(start),
        membership_(membership),
        device_(device),
        local_ranks_(local_ranks) {
    // A process that joins a running job catches signals from its start. When a whole job starts, ranks catch them only
    // after they have met; until then a signal ends the process, as in any program.
    if (membership.is_newcomer()) stop_.emplace(max_seconds, start);
  }

  RunEnd run() {
    while (true) {
      std::unique_ptr<World> members = membership_.join_next();
      if (members == nullptr) return RunEnd::done;
      if (!stop_) stop_.emplace(max_seconds_, start_);
      StopRequest::tell_user(members->rank() == 0);
      try {
        const std::optional<RunEnd> end = run_epoch(members);
        leave();
        if (end) return *end;
      } catch (const RankFailure& failure) {
        if (failure.report().rank < 0) {
          abandon();
          throw;
        }
        count_failure();
        leave();
      } catch (...) {
        abandon();
        throw;
      }
    }
  }

 private:
  std::optional<RunEnd> run_epoch(std::unique_ptr<World>& joined) {
    const bool shares_memory = learn_what_is_left(*joined);
    set_up(*joined);
    joined = with_links(std::move(joined), plan_->config.cluster.description, plan_->config.cluster.clock);
    World& members = *joined;
    std::optional<Regrouped> regrouped;
    std::string loss = "no rank that is left holds any of the training state";
    if (past_.begun_in != never && !shares_memory) {
      loss = "the ranks can no longer read each other's memory";
    } else if (past_.begun_in != never) {
      const ProgressIsExpected expected(members.health(), seconds_of_moving(plan_->config));
      try {
        regrouped = regroup(plan_->config, members, membership_.epoch(), plan_->config.noise_scale.enabled, state_,
                            [&](const auto& before, int64_t ranks) { return manned(choose_among(before, ranks)); });
      } catch (const NoConfiguration& reason) {  // thrown on all members
        if (membership_.epoch().num_parting == 0) throw;
        end_since_nobody_can_take_over(reason, members);
        return std::nullopt;
      } catch (const StateIsLost& lost) {  // thrown on all members
        loss = lost.loss();
      }
    }
    if (!regrouped && membership_.epoch().number > 0) {
      return_to_checkpoint(members, loss);
      state_ = {};  // also on spares, whose old state could otherwise be mistaken for the loaded state
    }
    if (regrouped) membership_.settled();
    const MannedConfiguration now =
        regrouped ? MannedConfiguration{regrouped->now, regrouped->members} : first_configuration(members);
    if (std::ranges::find(now.members, members.rank()) == now.members.end()) {
      if (plan_->checkpoint) plan_->checkpoint->release_tensors();  // a later epoch opens the newest one again
      membership_.wait_as_spare(members, [this] {
        const StopReason reason = stop_->reason(0);
        return reason == StopReason::terminate || reason == StopReason::interrupt;
      });
      return std::nullopt;
    }
    world_ = chosen_ranks(members, now.members);
    limit_memory(plan_->config, device_, world_->size());
    if (regrouped) {
      go_on(*regrouped);
    } else {
      begin(now);
    }
    return RunLoop(*plan_, *dataset_, *trainer_, *world_, *stop_, leader_.get(), &membership_).until_end(passed_);
  }

  bool learn_what_is_left(World& members) {
    const ProgressIsExpected expected(members.health(), least_seconds_of_progress);
    const bool shares_memory = join_arenas(members);
    agree_on_past(members);
    return shares_memory;
  }

  // Maps the arenas of a machine's ranks into each other, including arenas of ended processes that the machine's
  // launcher has kept. Returns whether that worked.
  bool join_arenas(World& members) {
    if (membership_.epoch().number == 0) return true;
    const bool is_new = state_.arena == nullptr;
    const bool joined = copus::join_arenas(members, membership_.epoch(), membership_.kept_arenas(), state_);
    if (joined && is_new) membership_.keep(*state_.arena);
    return joined;
  }

  // Sets up this process once, and checks what every new set of ranks must have in common.
  void set_up(World& members) {
    take_plan(members);
    members.health().set_place("setting up");
    if (!dataset_) {
      have_cores_ = set_up_process(plan_->config, local_ranks_);
      dataset_.emplace(open_run_data(plan_->config));
    }
    resolve_documents(plan_->config, *dataset_);
    Precision& precision = plan_->config.execution.precision;
    precision = agree_on_precision(precision, device_, members);
    if (membership_.epoch().number == 0 || is_planned_anew_) {
      if (!plan_->checkpoint) plan_->start = starting_configuration(plan_->config);
      check_all_ranks_begin_alike(*plan_, *dataset_, members);
    } else {
      check_all_have_the_data(members);
    }
  }

  // A process that joins may find other data than the run's.
  void check_all_have_the_data(World& members) {
    const std::string first = broadcast_text(dataset_->fingerprint(), 0, members.everyone());
    std::optional<Obstacle> mine;
    if (dataset_->fingerprint() != first) {
      mine =
          Obstacle{concat("its data have the fingerprint ", dataset_->fingerprint(), ", and those of rank 0 ", first)};
    }
    const std::optional<Obstacle> difference = agree_on_obstacle(mine, 0, members.everyone());
    if (!difference) return;
    throw UserError(concat(difference->reason, "; give every machine the same data.train, then resume the run"));
  }

  // Sends the run's configuration and directory to new processes: the files no longer show how the run began.
  void take_plan(World& members) {
    is_planned_anew_ = false;
    if (membership_.epoch().number == 0) return;
    members.health().set_place("taking the plan");
    std::vector<int64_t> with_plan(members.size());
    const int64_t has_plan = plan_.has_value();
    members.everyone().all_gather(&has_plan, with_plan.data(), std::vector<int64_t>(members.size(), 1),
                                  DataType::int64);
    const int64_t first = std::ranges::find(with_plan, 1) - with_plan.begin();
    if (first == members.size()) return plan_anew();
    const std::string directory = broadcast_text(plan_ ? plan_->directory.string() : "", first, members.everyone());
    const std::string text = broadcast_text(plan_ ? to_toml(plan_->config) : "", first, members.everyone());
    int64_t logged_step = plan_ ? plan_->logged_step : 0;
    members.everyone().broadcast(&logged_step, 1, DataType::int64, first);
    if (plan_) return;
    plan_ = plan_without_run(request_);
    plan_->config = parse_run_config(text, concat("the configuration of rank ", first));
    plan_->directory = directory;
    plan_->logged_step = logged_step;
    plan_->resume = true;
    plan_->start = configuration_of(plan_->config);
  }

  // Makes the plan from the run's files, if all processes that had it are gone.
  void plan_anew() {
    const std::filesystem::path directory = membership_.epoch().note;
    if (directory.empty()) throw UserError("all ranks that knew of the run ended before it began; start it again");
    RunRequest again = request_;
    // Uses the run's own copy of the configuration, because the user may have edited the file.
    const std::filesystem::path config = directory / "config.toml";
    if (std::filesystem::exists(config)) again.config_path = config.string();  // else the run did not get that far
    again.run_directory = directory.string();
    again.resume = true;
    again.has_memory = true;  // in arenas that the launcher keeps; if they are lost, looks for a checkpoint again
    plan_ = plan_run(again);
    past_.was_begun = is_planned_anew_ = true;
  }

  // Ends the job with a checkpoint in the next epoch. Without this, the state of the leaving ranks would be lost.
  void end_since_nobody_can_take_over(const NoConfiguration& reason, World& members) {
    membership_.ask_to_stop();
    if (members.rank() > 0) return;
    write_all(STDERR_FILENO, concat("copus: ranks leave, and those that stay cannot take over what they hold, so the "
                                    "job ends with a checkpoint: ",
                                    printable(reason.what()), "\n"));
  }

  // Called on rank 0 only. A job that is about to end, or whose ranks have not changed, keeps its layout.
  std::optional<Configuration> choose_among(const Configuration& before, int64_t ranks) {
    given_up_.clear();
    const bool has_ranks = before.strategy.world_size() <= ranks;
    const bool are_unchanged = ranks == ranks_at_work_ && membership_.epoch().lost.empty() && is_safe_enough(before);
    if (has_ranks && (are_unchanged || membership_.stop_wanted())) return before;
    if (leader_) return choose_among(before, ranks, leader_->knowledge());
    const auto known = knowledge_of_run(plan_->config, profile_path(*plan_));
    return choose_among(before, ranks, known ? known->profile.knowledge : Knowledge());
  }

  std::optional<Configuration> choose_among(const Configuration& before, int64_t ranks, const Knowledge& knowledge) {
    const auto choose = [&](const std::function<bool(const Configuration&)>& is_preferred) {
      return configuration_for_ranks(plan_->config, before, ranks, knowledge, is_preferred);
    };
    const std::optional<Configuration> chosen =
        choose([this](const Configuration& one) { return is_safe_enough(one); });
    if (!plan_->config.heal.machines || !chosen) return chosen;
    if (!is_safe_enough(*chosen)) {
      given_up_ = "no layout of these ranks survives the loss of a machine (heal.machines)";
    } else if (const auto other = choose([](const Configuration&) { return true; }); other && other != chosen) {
      given_up_ = concat("not in ", to_string(*other), " on ", other->strategy.world_size(),
                         " ranks, which would not survive the loss of a machine (heal.machines)");
    }
    return chosen;
  }

  // Returns whether the state in this configuration survives the loss of a machine, which is impossible on a single
  // machine. Also returns true if the user does not require it.
  bool is_safe_enough(const Configuration& configuration) const {
    return !plan_->config.heal.machines || safe_members(configuration.strategy).has_value();
  }

  std::optional<std::vector<int64_t>> safe_members(const ParallelStrategy& strategy) const {
    const Epoch& epoch = membership_.epoch();
    if (epoch.machines.empty()) return std::nullopt;
    return members_that_outlive_any_machine(strategy,
                                            {epoch.machines.begin(), epoch.machines.begin() + epoch.num_staying()});
  }

  // Chooses the members that become a configuration's ranks: the first members or, with heal.machines, members such
  // that the state survives the loss of a machine.
  std::optional<MannedConfiguration> manned(const std::optional<Configuration>& configuration) const {
    if (!configuration) return std::nullopt;
    std::vector<int64_t> members(configuration->strategy.world_size());
    std::iota(members.begin(), members.end(), 0);
    if (plan_->config.heal.machines) members = safe_members(configuration->strategy).value_or(members);
    return MannedConfiguration{*configuration, std::move(members)};
  }

  // Returns the initial configuration of a run, which is the planned one if all its ranks are available. A
  // configuration that a policy chose is replaced if its state would not survive the loss of a machine.
  MannedConfiguration first_configuration(World& members) {
    std::vector<int64_t> words(num_configuration_fields);
    if (members.rank() == 0) {
      std::optional<Configuration> first = plan_->start;
      const int64_t ranks = membership_.epoch().num_staying();
      const bool has_ranks = first->strategy.world_size() == ranks;
      const bool is_users = first == configuration_of(plan_->config);
      if (!has_ranks || (!is_users && !is_safe_enough(*first))) {
        first = choose_among(plan_->start, ranks, Knowledge());
      }
      if (first) {
        const ConfigurationWords chosen = to_words(*first);
        words.assign(chosen.begin(), chosen.end());
      }
    }
    members.everyone().broadcast(words.data(), std::ssize(words), DataType::int64, 0);
    if (words.front() == 0) {
      throw UserError(concat("no layout of the ", membership_.epoch().num_staying(),
                             " ranks that are left can train with a global batch ", "of ", plan_->start.global_batch,
                             "; start again with more ranks"));
    }
    return *manned(configuration_of_words(std::span(words).first<num_configuration_fields>()));
  }

  // Returns to the newest checkpoint if no copy of the state is in memory; `loss` says why. Reads checkpoints and log
  // again, because they may be far ahead of the state with which the job began. Throws UserError if the run has
  // recorded steps but has no checkpoint.
  void return_to_checkpoint(World& members, const std::string& loss) {
    members.health().set_place("returning to the newest checkpoint");
    const bool leads = members.rank() == 0;
    const bool has_begun = past_.begun_in != never || past_.was_begun != 0;
    const std::string known = plan_->checkpoint ? plan_->checkpoint->directory().string() : "";
    RunPlan found;
    found.directory = plan_->directory;
    if (leads) {
      await_checkpoint_in_progress();
      take_newest_checkpoint(found);
    }
    const std::string newest =
        broadcast_text(found.checkpoint ? found.checkpoint->directory().string() : "", 0, members.everyone());
    const bool begins_again = newest.empty() && has_begun && has_nothing_to_lose(members, known.empty());
    if (newest.empty() && !begins_again && (has_begun || !known.empty())) {
      throw UserError(concat(loss, ", and the run has no checkpoint",
                             known.empty() ? " yet; start it again with --resume, from its beginning"
                                           : concat(": ", known, " is gone; put it back and go on with --resume")));
    }
    const std::filesystem::path log = plan_->directory / "run.jsonl";
    plan_->resume = plan_->resume || std::filesystem::exists(log);
    plan_->checkpoint.reset();  // even if it is the newest, because its tensors may have been released
    if (!newest.empty()) plan_->checkpoint.emplace(newest, Checkpoint::Check::texts);
    if (!has_begun && newest == known) return;
    int64_t step = 0;
    if (plan_->checkpoint) {
      const TrainingState then = parse_training_state(plan_->checkpoint->training_state(), newest);
      step = then.step;
      if (newest != known) {  // otherwise the run starts again, as requested
        plan_->start = then.configuration;
        plan_->changes.clear();
        plan_->effects.clear();
      }
    }
    past_.failures.after_step = step;  // failures at repeated steps do not count as failures at one step
    plan_->damage = std::move(found.damage);
    plan_->state_is_in_memory = false;
    plan_->takes_over = true;
    plan_->logged_step = latest_logged_step(log);
    passed_ = {};
    leader_.reset();
    if (!leads) return;
    const std::string next =
        begins_again ? "no step was recorded yet, and the job begins again"
                     : concat("the job goes on from ", newest, " and trains ",
                              counted(std::max<int64_t>(0, plan_->logged_step - step), "step"), " after it again");
    write_all(STDERR_FILENO, concat("copus: ", printable(loss), "; ", printable(next), "\n"));
  }

  // Returns whether the job can start again without losing progress. It can if it began without a checkpoint, the log
  // has no step, and no rank has trained past step 1 (whose line may be missing from the log). Rank 0 decides for all.
  bool has_nothing_to_lose(World& members, bool without_checkpoint) const {
    const std::filesystem::path log = plan_->directory / "run.jsonl";
    int64_t nothing = members.rank() == 0 && without_checkpoint && std::filesystem::exists(log) &&
                      latest_logged_step(log) == 0 && past_.failures.after_step <= 1;
    members.everyone().broadcast(&nothing, 1, DataType::int64, 0);
    return nothing != 0;
  }

  // Waits for a checkpoint whose files are all written, because it may become complete at any moment. The wait is
  // bounded, because a disk may hang.
  void await_checkpoint_in_progress() {
    if (!leader_ || !leader_->has_begun()) return;
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(10);
    while (!leader_->output().checkpoints().is_idle() && std::chrono::steady_clock::now() < deadline) {
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
  }

  // Begins the run on all ranks of the world.
  void begin(const MannedConfiguration& now) {
    const Configuration& configuration = now.configuration;
    if (membership_.epoch().number == 0 && !is_safe_enough(configuration)) {
      throw UserError(concat("heal.machines = true, and of the layout ", to_string(configuration.strategy),
                             " some training state is on one machine alone; let data-parallel ranks, with ZeRO "
                             "parallel.zero_replicas, hold it on several machines, or set heal.machines = false"));
    }
    plan_->start = configuration;
    state_ = {};
    loaded_in_ = never;
    // In later epochs, memory of ended processes may not be free yet.
    if (membership_.epoch().number == 0) check_state_fits(plan_->config, configuration, device_, local_ranks_, *world_);
    const auto of_ranks = [&](const std::vector<int64_t>& by_member) {
      std::vector<int64_t> by_rank;
      if (by_member.empty()) return by_rank;
      for (const int64_t member : now.members) by_rank.push_back(by_member.at(member));
      return by_rank;
    };
    const Epoch& epoch = membership_.epoch();
    trainer_ = std::make_unique<Trainer>(plan_->config, configuration, *dataset_, device_, *world_,
                                         of_ranks(epoch.processes), of_ranks(epoch.machines));
    world_->health().set_place("loading the first state");
    load_first_state(*plan_, *trainer_, *world_);
    const bool leads = world_->rank() == 0;
    leader_ = leads ? std::make_unique<RunLeader>(*plan_, trainer_->state()) : nullptr;
    loaded_in_ = epoch.number;
    world_->health().set_place("beginning");
    // After the barrier every rank relies on the arenas of the other ranks, so the launcher must have received this
    // rank's arena before the barrier. The arenas that the launcher had kept before hold state that is lost anyway.
    if (trainer_->arena() != nullptr) membership_.keep(*trainer_->arena());
    world_->everyone().barrier();  // all mistakes are found; no rank reads the run directory any more
    world_->health().set_place("having begun");
    past_.begun_in = epoch.number;
    trainer_->keep_record(epoch.number);
    if (epoch.number > 0) membership_.settled();
    if (leads) {
      // The note prevents the job from starting again in this directory if all ranks are killed from here on.
      membership_.leave_note(plan_->directory.string());
      world_->health().set_place("opening the run directory");
    }
    passed_ = begin_run(*plan_, *dataset_, *trainer_, *world_, have_cores_, leader_.get());
    if (leads && !given_up_.empty()) leader_->output().note(concat("safe       ", given_up_));
  }

  // Continues at the current step on the ranks of the world.
  void go_on(const Regrouped& regrouped) {
    trainer_ = std::make_unique<Trainer>(plan_->config, *dataset_, device_, *world_, std::exchange(state_, {}));
    trainer_->publish_weights();
    if (plan_->config.adapt.verify) {
      world_->health().set_place("verifying the state");
      trainer_->check_state(regrouped.hash);
    }
    trainer_->record_pause(regrouped.seconds);
    const int64_t step = regrouped.after_step, ranks = membership_.epoch().num_staying();
    passed_.record = trainer_->latest_record();
    passed_.may_owe_evaluation = false;
    if (passed_.last_switch && passed_.last_switch->after_step != step) passed_.last_switch.reset();
    // Does not report ranks again that have announced their leave.
    const bool is_news = std::exchange(ranks_at_work_, ranks) != ranks || regrouped.now != regrouped.before ||
                         !membership_.epoch().lost.empty();
    if (is_news) {
      passed_.change = RanksChanged{.after_step = step,
                                    .ranks = ranks,
                                    .from = regrouped.before,
                                    .to = regrouped.now,
                                    .pause_seconds = regrouped.seconds,
                                    .reason = why_ranks_changed(regrouped)};
    }
    const bool can_judge_speed = agree_to_judge_speed(plan_->config, device_, have_cores_, *world_);
    trainer_->gather_seconds(can_judge_speed);
    if (world_->rank() == 0) lead_on(regrouped, can_judge_speed);
    std::array<int64_t, 3> words = {passed_.written, passed_.last_checkpoint.value_or(-1), passed_.has_timeline};
    world_->everyone().broadcast(words.data(), std::ssize(words), DataType::int64, 0);
    passed_.written = words[0];
    passed_.last_checkpoint = words[1] < 0 ? std::nullopt : std::optional(words[1]);
    passed_.has_timeline = words[2] != 0;
  }

  // Rank 0's part of go_on(). A new rank 0 takes over the run directory, and writes the latest step again, which the
  // previous rank 0 may have written already.
  void lead_on(const Regrouped& regrouped, bool can_judge_speed) {
    const int64_t step = regrouped.after_step;
    if (leader_ && leader_->has_begun()) {
      if (leader_->output().checkpoints().forget()) {
        passed_.last_checkpoint.reset();
        leader_->ask_for_checkpoint();
      }
      return;
    }
    plan_->resume = true;
    plan_->checkpoint.reset();
    plan_->damage.clear();
    plan_->changes.clear();
    plan_->effects.clear();
    plan_->logged_step = step;
    plan_->state_is_in_memory = plan_->takes_over = true;
    plan_->start = passed_.last_switch ? passed_.last_switch->from : regrouped.before;
    passed_.written = passed_.record ? step - 1 : step;
    passed_.last_checkpoint.reset();
    TrainingState state = trainer_->state();
    state.step = passed_.written;
    leader_ = std::make_unique<RunLeader>(*plan_, state);
    membership_.leave_note(plan_->directory.string());  // an earlier rank 0 may have been lost before it did so
    leader_->begin(can_judge_speed);
  }

  // Counts how often other ranks have failed since this rank's latest step. A job whose ranks fail repeatedly at the
  // same step ends.
  void count_failure() {
    RepeatedFailures& failures = past_.failures;
    const int64_t step = trainer_ ? trainer_->state().step : failures.after_step;
    failures = {.after_step = step, .count = step == failures.after_step ? failures.count + 1 : 1};
  }

  // Gives all ranks what the best-informed ranks know about the job's past, because any rank may fail next. Drops this
  // rank's loaded state if not all ranks finished loading in the same epoch, or if the run has since returned to a
  // checkpoint.
  void agree_on_past(World& members) {
    members.health().set_place("learning what has happened");
    past_.begun_in = std::max(past_.begun_in, latest_load_on_record(state_.arena.get()));
    std::vector<Past> all(members.size());
    constexpr int64_t words = sizeof(Past) / sizeof(int64_t);
    members.everyone().all_gather(&past_, all.data(), std::vector<int64_t>(members.size(), words), DataType::int64);
    for (const Past& one : all) {
      past_.failures = std::max(past_.failures, one.failures);
      past_.begun_in = std::max(past_.begun_in, one.begun_in);
      past_.was_begun = std::max(past_.was_begun, one.was_begun);
    }
    if (state_.loaded_in != past_.begun_in) {
      SurvivingState none;
      none.arena = std::move(state_.arena);
      state_ = std::move(none);
    }
    state_.loaded_in = past_.begun_in;
    const RepeatedFailures& failures = past_.failures;
    if (failures.count < most_failures_at_a_step) return;
    throw UserError(concat("ranks have failed ", failures.count, " times in a row after step ", failures.after_step,
                           ", at last: ", reasons_of_losses(), "; go on from the last checkpoint with --resume"));
  }

  std::string reasons_of_losses() const {
    std::string text;
    for (const LostProcess& lost : membership_.epoch().lost) {
      text += concat(text.empty() ? "" : "; ", to_string(lost.report));
    }
    return text;
  }

  std::string why_ranks_changed(const Regrouped& regrouped) const {
    std::string text = reasons_of_losses();
    const bool have_left = membership_.epoch().num_parting > 0 || !regrouped.lost.empty();
    if (text.empty()) text = have_left ? "ranks have left" : "ranks have come";
    return given_up_.empty() ? text : concat(text, "; ", given_up_);
  }

  // Ends this process's part of the epoch. No communication is in flight after the epoch's world is destroyed.
  void leave() {
    if (trainer_) {
      std::optional<SurvivingState> state = trainer_->leave();
      // If the ranks of a machine cannot read each other's memory, no state survives. Loaded state is kept even if this
      // rank does not know whether all ranks have loaded theirs (agree_on_past decides).
      state_ = state ? std::move(*state) : SurvivingState();
      if (state_.loaded_in < 0) state_.loaded_in = loaded_in_;
    }
    trainer_.reset();
    world_.reset();
    // A process that is about to end releases the run directory, so that the next rank 0 can open it.
    if (stop_->reason(0) == StopReason::terminate) leader_.reset();
  }

  // Leaks trainer and world until the process ends, because communication in flight still uses their buffers.
  void abandon() {
    [[maybe_unused]] const Trainer* trainer = trainer_.release();
    [[maybe_unused]] const World* world = world_.release();
  }

  const RunRequest& request_;
  std::optional<RunPlan> plan_;
  bool is_planned_anew_ = false;  // whether a plan was made from files in this epoch; the same on all ranks
  const double max_seconds_;
  const std::chrono::steady_clock::time_point start_;
  Membership& membership_;
  const at::Device device_;
  const int64_t local_ranks_;
  bool have_cores_ = false;
  std::optional<Dataset> dataset_;
  std::optional<StopRequest> stop_;
  Past past_;
  SurvivingState state_;       // between epochs
  int64_t loaded_in_ = never;  // epoch in which this process last loaded state
  int64_t ranks_at_work_ = 0;  // number of ranks when training last continued, including spares
  std::string given_up_;       // rank 0: configurations that heal.machines rules out, as text for the user
  PassedBoundary passed_;
  std::unique_ptr<RunLeader> leader_;  // on rank 0
  std::unique_ptr<World> world_;       // of the training ranks
  std::unique_ptr<Trainer> trainer_;
};

}  // namespace

RunEnd run_healing_training(const RunRequest& request, std::optional<RunPlan> plan, double max_seconds,
                            std::chrono::steady_clock::time_point start, Membership& membership, at::Device device,
                            int64_t local_ranks) {
  return HealingRun(request, std::move(plan), max_seconds, start, membership, device, local_ranks).run();
}

}  // namespace copus
