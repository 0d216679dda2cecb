#include "copus/comm/job/healing/coordinator.h"

#include <sys/wait.h>

#include <algorithm>
#include <csignal>

#include "copus/base/error.h"
#include "copus/base/files/write_all.h"
#include "copus/base/process/stop_signals.h"
#include "copus/base/text/printable.h"
#include "copus/base/text/units.h"
#include "copus/comm/health/process_state.h"
#include "copus/comm/health/shared_health.h"
#include "copus/comm/job/start/poll_timer.h"

namespace copus {

namespace {

using std::chrono::steady_clock;

void tell_user(const std::string& line) { write_all(STDERR_FILENO, concat("copus: ", printable(line), "\n")); }

}  // namespace

Coordinator::Coordinator(int64_t ranks_per_machine, const Healing& healing, MachineProcesses& own,
                         std::vector<std::unique_ptr<RemoteMachine>>& others)
    : ranks_per_machine_(ranks_per_machine),
      size_(ranks_per_machine * (std::ssize(others) + 1)),
      own_(own),
      others_(others),
      composition_(size_, healing.replaces, healing.restarts, ranks_per_machine) {
  begin_watch();
}

std::optional<int> Coordinator::run(bool may_begin_again) {
  start_members();
  PollTimer timer;
  while (!all_ended()) {
    wait_for_news();
    take_signals();
    const double seconds = timer.next();
    // Reads all news before it handles ended processes: a rank may have left the epoch because of a failure that is
    // only noticed now.
    const auto all_news = hear(seconds);
    look_at_health(seconds);
    end_stopped_newcomers(seconds);
    for (const auto& [machine, news] : all_news) handle(machine, news);
    look_at_machines();
    composition_.pass(seconds, watch_->longest_step_seconds());
    act();
    own_.system().forward_errors();
  }
  own_.system().finish_errors();
  take_signals();
  const bool all_are_there = std::ranges::all_of(others_, [](const auto& other) { return other->descriptor() >= 0; });
  if (!may_begin_again || !all_are_there || !composition_.can_begin_again()) return conclude();
  tell_user(concat(to_string(*end_), "; no rank is left, training had not begun, and the ranks are started again"));
  return std::nullopt;
}

void Coordinator::give(int64_t machine, const Order& order) {
  RemoteMachine* const other = remote(machine);
  if (other != nullptr) {
    other->tell(order);
    return;
  }
  for (const News& news : own_.carry_out(order)) handle(machine, news);
}

void Coordinator::give_all(const Order& order) {
  for (int64_t machine = 0; machine <= std::ssize(others_); ++machine) give(machine, order);
}

void Coordinator::tell(int64_t number, FromLauncher::Kind kind) {
  give(members_.at(number).machine, TellProcess{number, kind});
}

void Coordinator::tell_members(FromLauncher::Kind kind) {
  for (const int64_t member : composition_.members()) tell(member, kind);
}

// Begins to watch the ranks of the new epoch.
void Coordinator::begin_watch() {
  const int64_t size = std::ssize(composition_.members());
  failure_is_known_ = false;
  if (has_several_machines()) {
    watch_ = std::make_unique<ReportsWatch>(size);
    return;
  }
  auto watch = std::make_unique<SegmentWatch>(size, started_);
  segment_ = watch->segment();
  watch_ = std::move(watch);
}

void Coordinator::start_members() {
  const std::chrono::duration<double> passed = steady_clock::now() - started_;
  give_all(BeginJob{passed.count()});
  Epoch first{.number = composition_.epoch(), .processes = composition_.members()};
  for (const int64_t number : composition_.members()) {
    Member& member = members_[number];
    member.machine = number / ranks_per_machine_;
    member.local_rank = number % ranks_per_machine_;
    first.machines.push_back(member.machine);
    give(member.machine,
         StartProcess{number, number, member.local_rank, prefix_of_rank(number, member.machine), segment_});
  }
  // If all ranks are on one machine, they read the first epoch from the segment that they inherit.
  if (has_several_machines()) give_all(BeginEpoch{std::move(first)});
}

// The newcomer's environment describes the last rank of a job of the initial size. So the newcomer uses as many of the
// machine's cores as the other ranks do.
void Coordinator::start_newcomer(int64_t number, int64_t replaces) {
  const Member& before = members_.at(replaces);
  Member& member = members_[number];
  member.machine = before.machine;
  member.local_rank = before.local_rank;
  give(before.machine, StartProcess{number, size_ - 1, before.local_rank, concat("process ", number, ": ")});
}

bool Coordinator::all_ended() const {
  return !composition_.has_delayed() &&
         std::ranges::all_of(members_, [](const auto& entry) { return entry.second.end.ended; });
}

void Coordinator::wait_for_news() const {
  std::vector<int> links;
  for (const auto& other : others_) links.push_back(other->descriptor());
  own_.wait_for_news(std::move(links));
}

void Coordinator::take_signals() {
  for (const int signal : own_.system().take_signals()) {
    for (const auto& other : others_) other->tell(PassSignal{signal});
    composition_.stop();
    if (is_notice(signal)) continue;
    // Signals that arrive within this time count as one: schedulers repeat a signal, and send it to several processes
    // of a job at once.
    constexpr std::chrono::seconds one_signal(1);
    const auto now = steady_clock::now();
    if (now - told_to_end_.value_or(now) > one_signal) composition_.stop_at_once();
    if (!told_to_end_) told_to_end_ = now;
  }
}

std::vector<std::pair<int64_t, News>> Coordinator::hear(double seconds) {
  std::vector<std::pair<int64_t, News>> all;
  for (News& news : own_.look()) all.emplace_back(0, std::move(news));
  for (const auto& other : others_) {
    for (News& news : other->hear(seconds)) all.emplace_back(other->number(), std::move(news));
  }
  return all;
}

// Ignores news about processes that do not belong to the reporting machine or have ended.
void Coordinator::handle(int64_t machine, const News& news) {
  std::visit(
      [&](const auto& one) {
        if constexpr (requires { one.number; }) {
          const auto found = members_.find(one.number);
          if (found == members_.end() || found->second.machine != machine || found->second.end.ended) return;
        }
        handle_one(machine, one);
      },
      news);
}

void Coordinator::handle_one(int64_t /*machine*/, const Arrived& /*news*/) {}

void Coordinator::handle_one(int64_t /*machine*/, const Started& news) {
  members_.at(news.number).pid = news.pid;
  if (const auto rank = composition_.rank_of(news.number)) watch_->set_process(*rank, news.pid);
}

void Coordinator::handle_one(int64_t /*machine*/, const NotStarted& news) {
  if (news.number < size_) throw UserError(news.why);
  members_.at(news.number).end = {.ended = true};
  tell_user(news.why);
  composition_.ends(news.number, false);
}

void Coordinator::handle_one(int64_t /*machine*/, const Said& news) {
  const auto rank = composition_.rank_of(news.number);
  switch (news.message.kind) {
    case FromRank::Kind::wants_to_leave:
      composition_.asks_to_leave(news.number);
      return act();
    case FromRank::Kind::wants_to_stop:
      composition_.stop();
      return act();
    case FromRank::Kind::ready:
      if (rank && !composition_.epoch_is_to_end()) fail(*rank, "it left the epoch without a reason");
      composition_.becomes_ready(news.number);
      return act();
    case FromRank::Kind::notes:
      note_ = news.message.note;
      return composition_.has_begun();
    case FromRank::Kind::advances:
      return composition_.advances();
    case FromRank::Kind::keeps_arena:  // handled by its own launcher
    case FromRank::Kind::settled:
      return;
    case FromRank::Kind::joined:
    case FromRank::Kind::left:
      if (!rank) return;
      watch_->hear(*rank, news.message);
      look_at_failure();
      if (news.message.kind == FromRank::Kind::left && !news.message.failure) composition_.comes_to_the_end();
      return act();
    case FromRank::Kind::garbled:
      // A process that sends invalid messages does not run the program that its launcher started.
      return kill(news.number, "it sent the launcher what is no message");
  }
}

void Coordinator::handle_one(int64_t /*machine*/, const Ended& news) {
  Member& member = members_.at(news.number);
  member.end = {true, static_cast<int>(news.status)};
  member.held_back = news.held_back;
  const auto rank = composition_.rank_of(news.number);
  if (!rank || !composition_.is_member(news.number)) {
    const std::string cause = own_.system().judge_end(member.end, true).value_or("it left");
    return end_newcomer(news.number, member.killed_because == stopped_cause ? stopped_cause : cause);
  }
  // From the second epoch on, a member counts as present even before it has joined, because other members rely on it.
  const bool has_come = watch_->has_joined(*rank) || composition_.epoch() > 0;
  const bool going_on = composition_.course() == Composition::Course::going_on;
  const bool in_the_middle = (has_come && !watch_->has_left(*rank)) || (going_on && composition_.is_ready(news.number));
  const bool by_us = !member.killed_because.empty() && member.end.killed_by({SIGKILL});
  end_member(news.number, own_.system().judge_end(member.end, in_the_middle), by_us);
}

void Coordinator::handle_one(int64_t /*machine*/, const Stopped& news) {
  Member& member = members_.at(news.number);
  member.is_stopped = news.is_stopped;
  member.stopped_seconds = 0;
  if (const auto rank = composition_.rank_of(news.number)) watch_->set_stopped(*rank, news.is_stopped);
}

// Only the machine is recorded here. Its ranks ask to leave by themselves, because they received the same signal.
void Coordinator::handle_one(int64_t machine, const Leaves& /*news*/) {
  left_.insert(machine);
  for (const auto& [number, member] : members_) {
    if (member.machine != machine) continue;
    composition_.cannot_be_replaced(number);
    if (!member.end.ended && composition_.is_newcomer(number)) composition_.asks_to_leave(number);
  }
  act();
}

void Coordinator::fail(int64_t rank, const std::string& cause) {
  watch_->report({rank, watch_->place_of(rank), cause});
  look_at_failure();
}

void Coordinator::look_at_health(double seconds) {
  if (!watch_->failure()) {
    if (const auto report = watch_->look(seconds)) watch_->report(*report);
  }
  look_at_failure();
  if (failure_is_known_) end_stopped_members();
}

// Kills stopped members, which cannot leave the epoch by themselves. But if no other process continues, the stopped
// members hold all remaining training state, so they are woken instead.
void Coordinator::end_stopped_members() {
  const int64_t failed = watch_->failure()->rank;
  std::vector<int64_t> stopped;
  bool others_go_on = false;
  for (int64_t rank = 0; rank < std::ssize(composition_.members()); ++rank) {
    const int64_t number = composition_.members()[rank];
    if (members_.at(number).end.ended) continue;
    if (watch_->is_stopped(rank)) {
      stopped.push_back(number);
    } else {
      others_go_on = others_go_on || rank != failed;
    }
  }
  for (const int64_t number : stopped) {
    if (others_go_on) {
      kill(number, stopped_cause);
    } else {
      give(members_.at(number).machine, ContinueProcess{number});
    }
  }
}

// Nothing else monitors newcomers before their first epoch, although the members may be waiting for them.
void Coordinator::end_stopped_newcomers(double seconds) {
  for (auto& [number, member] : members_) {
    if (!member.is_stopped || member.end.ended || !composition_.is_newcomer(number)) continue;
    member.stopped_seconds += std::min(seconds, longest_look_at_stopped);
    if (member.stopped_seconds >= HealthLimits{}.stopped_seconds) kill(number, stopped_cause);
  }
}

void Coordinator::look_at_failure() {
  const std::optional<FailureReport> failure = watch_->failure();
  if (!failure || std::exchange(failure_is_known_, true)) return;
  // Ranks on several machines notice by themselves only failures that affect them.
  if (has_several_machines()) give_all(TellOfFailure{composition_.epoch(), *failure});
  if (failure->rank < 0) return fail_job(*failure);
  composition_.fails(composition_.members()[failure->rank], failure->cause == own_error_cause);
}

void Coordinator::look_at_machines() {
  for (const auto& other : others_) {
    const int64_t machine = other->number();
    if (other->is_concluded()) continue;
    if (const auto cause = other->loss()) {
      other->hang_up();
      lose_machine(*other, *cause);
      continue;
    }
    // A leaving machine is released as soon as none of its processes takes part any more.
    const bool is_empty = std::ranges::all_of(
        members_, [&](const auto& entry) { return entry.second.machine != machine || entry.second.end.ended; });
    const bool goes_on = composition_.course() == Composition::Course::going_on && own_.system().passed_on().empty();
    if (left_.contains(machine) && is_empty && goes_on) other->conclude(0);
  }
}

void Coordinator::lose_machine(RemoteMachine& machine, const std::string& cause) {
  const std::string gone = concat("its ", machine.name(), " is gone: ", cause);
  for (const auto& [number, member] : members_) {
    if (member.machine != machine.number()) continue;
    composition_.cannot_be_replaced(number);
    // Marks all members of the machine as failed before ending any of them. Otherwise, when one of them has ended, an
    // epoch with another of them could begin.
    const bool takes_part = composition_.rank_of(number) && composition_.is_member(number);
    if (!member.end.ended && takes_part) composition_.fails(number);
  }
  for (auto& [number, member] : members_) {
    if (member.machine != machine.number() || member.end.ended) continue;
    member.end = {true, SIGKILL};
    const bool takes_part = composition_.rank_of(number) && composition_.is_member(number);
    takes_part ? end_member(number, gone, false) : end_newcomer(number, gone);
  }
}

void Coordinator::fail_job(const FailureReport& report) {
  if (!end_) end_ = report;
  watch_->report(report);
  composition_.fail_job();
}

// `cause`: why the end is a failure, if it is one; `by_us`: this launcher killed the process.
void Coordinator::end_member(int64_t number, const std::optional<std::string>& cause, bool by_us) {
  const int64_t rank = *composition_.rank_of(number);
  watch_->forget(rank);
  if (composition_.course() == Composition::Course::done) {
    composition_.ends(number, true);
    return act();
  }
  if (cause) {
    Member& member = members_.at(number);
    const FailureReport judged{rank, watch_->place_of(rank), by_us ? member.killed_because : *cause, member.pid, true};
    watch_->report(judged);
    member.report = watch_->told_of(judged, by_us);
    const bool ends_all = member.end.exited_with(users_mistake) || member.end.exited_with(cannot_execute) ||
                          member.end.killed_by(own_.system().passed_on());
    if (ends_all && !by_us) fail_job(member.report);
  }
  look_at_failure();
  const bool by_own_error = cause && WIFEXITED(members_.at(number).end.status);
  if (by_own_error) composition_.fails(number, by_own_error);
  composition_.ends(number, !cause);
  // A rank's own error before training begins ends the job. So this error is reported even if another rank failed
  // first.
  const bool has_failed = composition_.course() == Composition::Course::failed;
  if (by_own_error && has_failed && note_.empty() && !end_) end_ = members_.at(number).report;
  act();
}

// Ends a newcomer, or a process that has been released.
void Coordinator::end_newcomer(int64_t number, const std::string& cause) {
  const bool was_wanted = composition_.is_newcomer(number);
  composition_.ends(number, true);
  if (was_wanted) {
    const auto pause = composition_.pause_before_replacing(number);
    const std::string next = !pause       ? "; no other is started"
                             : *pause > 0 ? concat("; another one is started in ", *pause, " s")
                                          : "";
    tell_user(
        concat("process ", number, " (pid ", members_.at(number).pid, ") ended before it took part: ", cause, next));
  }
  act();
}

// Carries out pending actions after each event, so that the next event finds the composition and its epoch consistent.
void Coordinator::act() {
  for (auto acts = composition_.take_acts(); !acts.empty(); acts = composition_.take_acts()) {
    for (const Act& one : acts) act(one);
  }
}

void Coordinator::act(const Act& act) {
  switch (act.kind) {
    case Act::Kind::start:
      return start_newcomer(act.process, act.replaces);
    case Act::Kind::kill:
      return kill(act.process, "it did not leave the epoch in time");
    case Act::Kind::ask_to_regroup:
      return tell_members(FromLauncher::Kind::regroup);
    case Act::Kind::tell_to_stop:
      return tell_members(FromLauncher::Kind::stop);
    case Act::Kind::release:
      return tell(act.process, FromLauncher::Kind::go);
    case Act::Kind::begin_epoch:
      return begin_epoch();
    case Act::Kind::end_job:
      return end_job();
  }
}

void Coordinator::kill(int64_t number, const std::string& because) {
  Member& member = members_.at(number);
  if (member.end.ended) return;
  if (member.killed_because.empty()) member.killed_because = because;
  give(member.machine, KillProcess{number});
}

void Coordinator::begin_epoch() {
  Epoch epoch{.number = composition_.epoch(),
              .processes = composition_.members(),
              .num_parting = composition_.num_parting(),
              .note = note_};
  const int64_t size = std::ssize(epoch.processes);
  for (const int64_t number : composition_.lost()) {
    FailureReport& report = members_.at(number).report;
    // Peers may have reported where the rank was only after its process had ended.
    if (report.place.empty()) report.place = watch_->place_of(report.rank);
    epoch.lost.push_back({number, report});
    tell_user(concat(to_string(report), "; the job goes on with ", counted(size, "rank")));
  }
  begin_watch();
  for (int64_t rank = 0; rank < size; ++rank) {
    const Member& member = members_.at(epoch.processes[rank]);
    watch_->set_process(rank, member.pid);
    watch_->set_stopped(rank, member.is_stopped);  // it may have been stopped as a newcomer
    if (has_several_machines()) epoch.machines.push_back(member.machine);
  }
  give_all(BeginEpoch{std::move(epoch), segment_});
}

// Ends all waits: processes that wait for the next epoch see their socket closed, and ranks that wait for other ranks
// see the failure.
void Coordinator::end_job() {
  if (!end_) end_ = watch_->failure();
  COPUS_CHECK(end_, "a job has failed and nobody has");
  give_all(EndJob{});
}

int Coordinator::conclude() {
  const auto concluded = [&](int64_t rank) {
    const Member& member = members_.at(composition_.members().at(rank));
    return ConcludedProcess{member.end, member.held_back, rank == 0 && member.machine == 0};
  };
  if (!end_) {
    // All processes report the same exit, except those that fail during the end of the job.
    for (int64_t rank = 0; rank < std::ssize(composition_.members()); ++rank) {
      const ProcessEnd end = concluded(rank).end;
      if (WIFEXITED(end.status)) return WEXITSTATUS(end.status);
    }
    return failed_job;
  }
  std::optional<ConcludedProcess> failed;
  if (end_->rank >= 0) failed = concluded(end_->rank);
  return own_.system().conclude(*end_, concluded(0), failed);
}

}  // namespace copus
