// The launcher of a job whose ranks come and go: it ends ranks that fail, brings the others together again without
// them, and starts others in their place. What is to be done when is decided in composition.h.
#include <algorithm>
#include <chrono>
#include <csignal>
#include <map>
#include <memory>
#include <optional>
#include <utility>

#include "copus/base/error.h"
#include "copus/base/write_all.h"
#include "copus/comm/health/process_state.h"
#include "copus/comm/health/rank_monitor.h"
#include "copus/comm/health/shared_health.h"
#include "copus/comm/job/composition.h"
#include "copus/comm/job/control_socket.h"
#include "copus/comm/job/launcher.h"
#include "copus/comm/job/rank_process.h"
#include "copus/comm/shared_memory/shared_memory_world.h"

namespace copus {

namespace {

using std::chrono::steady_clock;

void tell(const std::string& line) { write_all(STDERR_FILENO, concat("copus: ", line, "\n")); }

// What the launcher has of one epoch.
struct WatchedEpoch {
  WatchedEpoch(int64_t size, steady_clock::time_point start)
      : segment(SharedSegment::create(size, start)),
        health(segment.health(), size, size),
        monitor(health, RankMonitor::Role::parent) {
    health.become_launcher();
  }

  SharedSegment segment;
  SharedHealth health;
  RankMonitor monitor;
  bool failure_is_known = false;  // to the composition
};

class HealingJob {
 public:
  HealingJob(int64_t size, const std::vector<std::string>& arguments, const Healing& healing)
      : started_(steady_clock::now()),
        size_(size),
        composition_(size, healing.replaces),
        epoch_(std::make_unique<WatchedEpoch>(size, started_)),
        processes_(arguments) {}

  int run() {
    for (const int64_t process : composition_.members()) start_member(process);
    auto looked = steady_clock::now();
    while (!processes_.all_ended()) {
      wait_for_news();
      processes_.take_signals();
      if (!processes_.passed_on().empty()) composition_.stop();
      const auto now = steady_clock::now();
      const double seconds = std::chrono::duration<double>(now - std::exchange(looked, now)).count();
      // A rank that says that it has left the epoch may have done so for a failure that is only seen now.
      const auto messages = receive();
      look_at_health(seconds);
      reap();
      for (const auto& [process, message] : messages) handle(process, message);
      composition_.pass(seconds, step_seconds());
      act();
      processes_.forward_errors();
    }
    processes_.finish_errors();
    return conclude();
  }

 private:
  // A process as this launcher has started it.
  struct Member {
    RankProcess* process = nullptr;
    Descriptor control;
    FailureReport report;  // why it has been lost
    std::string killed_because;
  };

  static std::string prefix_of(int64_t rank) { return rank == 0 ? "" : concat("rank ", rank, ": "); }

  void start_member(int64_t number) {
    const int descriptor = epoch_->segment.descriptor();
    start(number, number, prefix_of(number), {concat("COPUS_SEGMENT=", descriptor)}, {descriptor});
    epoch_->health.set_process(number, members_.at(number).process->pid);
  }

  // It is told that it is the last rank of a job of the size that this one was started with, since it uses as many of
  // the machine's cores as the others do.
  void start_newcomer(int64_t number) {
    try {
      start(number, size_ - 1, concat("process ", number, ": "), {}, {});
    } catch (const UserError& error) {
      tell(error.what());
      composition_.ends(number, false);
    }
  }

  void start(int64_t number, int64_t rank, const std::string& prefix, std::vector<std::string> variables,
             std::vector<int> inherited) {
    auto [own, theirs] = control_sockets();
    variables.insert(variables.end(), {concat("COPUS_RANK=", rank), concat("COPUS_WORLD_SIZE=", size_),
                                       concat("COPUS_PROCESS=", number), concat("COPUS_CONTROL=", theirs.number())});
    inherited.push_back(theirs.number());
    RankProcess& process = processes_.start({number, prefix, std::move(variables), std::move(inherited)});
    members_[number] = {&process, std::move(own), {}, {}};
  }

  void wait_for_news() const {
    std::vector<int> controls;
    for (const auto& [number, member] : members_) {
      if (member.control.is_open()) controls.push_back(member.control.number());
    }
    processes_.wait_for_news(controls);
  }

  std::vector<std::pair<int64_t, FromRank>> receive() {
    std::vector<std::pair<int64_t, FromRank>> messages;
    for (auto& [number, member] : members_) {
      while (const auto message = receive_from_rank(&member.control)) messages.emplace_back(number, *message);
    }
    return messages;
  }

  void handle(int64_t number, FromRank message) {
    if (members_.at(number).process->ended) return;
    // A process that says what none does is not what this launcher has started any more.
    if (message == FromRank::garbled) return kill(number, "it sent the launcher what is no message");
    if (message == FromRank::wants_to_leave) {
      composition_.asks_to_leave(number);
      return act();
    }
    const auto rank = composition_.rank_of(number);
    if (rank && !composition_.epoch_is_to_end()) fail(*rank, "it left the epoch without a reason");
    composition_.becomes_ready(number);
    act();
  }

  void fail(int64_t rank, const std::string& cause) {
    epoch_->health.report({rank, epoch_->health.place_of(rank), cause});
    look_at_failure();
  }

  void look_at_health(double seconds) {
    if (!epoch_->health.failure()) {
      if (const auto report = epoch_->monitor.look(seconds)) epoch_->health.report(*report);
    }
    look_at_failure();
    if (!epoch_->failure_is_known) return;
    for (const int64_t number : composition_.members()) {
      const Member& member = members_.at(number);
      // A process that is stopped cannot leave by itself.
      if (!member.process->ended && process_state(member.process->pid) == ProcessState::stopped) {
        kill(number, "stopped (SIGSTOP)");
      }
    }
  }

  void look_at_failure() {
    const std::optional<FailureReport> failure = epoch_->health.failure();
    if (!failure || std::exchange(epoch_->failure_is_known, true)) return;
    if (failure->rank < 0) return fail_job(*failure);
    composition_.fails(composition_.members()[failure->rank]);
  }

  void fail_job(const FailureReport& report) {
    if (!end_) end_ = report;
    epoch_->health.report(report);
    composition_.fail_job();
  }

  void reap() {
    for (const RankProcess* process : processes_.reap()) {
      const auto rank = composition_.rank_of(process->number);
      if (rank && composition_.is_member(process->number)) {
        reap_member(*process, *rank);
      } else {
        reap_other(*process);
      }
    }
  }

  void reap_member(const RankProcess& process, int64_t rank) {
    epoch_->monitor.forget(rank);
    if (composition_.course() == Composition::Course::done) {
      composition_.ends(process.number, true);
      return act();
    }
    const RankSigns signs = epoch_->health.signs_of(rank);
    const bool going_on = composition_.course() == Composition::Course::going_on;
    // Before a member of a later epoch has joined, the others already count on it.
    const bool has_come = signs.heartbeats > 0 || composition_.epoch() > 0;
    const bool in_the_middle = (has_come && !signs.left) || (going_on && composition_.is_ready(process.number));
    const std::optional<std::string> cause = processes_.judge_end(process, in_the_middle);
    if (cause) {
      Member& member = members_.at(process.number);
      member.report = {rank, epoch_->health.place_of(rank), *cause, process.pid, true};
      const bool mine = !member.killed_because.empty() && process.killed_by({SIGKILL});
      if (mine) member.report.cause = member.killed_because;
      epoch_->health.report(member.report);
      const FailureReport first = *epoch_->health.failure();
      if (first.rank == rank) member.report = first;
      const bool ends_all = process.exited_with(users_mistake) || process.exited_with(cannot_execute) ||
                            process.killed_by(processes_.passed_on());
      if (ends_all && !mine) fail_job(member.report);
    }
    look_at_failure();
    composition_.ends(process.number, !cause);
    act();
  }

  // A newcomer, or one that was to go.
  void reap_other(const RankProcess& process) {
    const int64_t number = process.number;
    const bool was_wanted = composition_.is_newcomer(number);
    composition_.ends(number, true);
    if (was_wanted) {
      tell(concat("process ", number, " (pid ", process.pid,
                  ") ended before it took part: ", processes_.judge_end(process, true).value_or("it left"),
                  composition_.replaces_no_more() ? "; no other is started" : ""));
    }
    act();
  }

  double step_seconds() const {
    double longest = 0;
    for (int64_t rank = 0; rank < epoch_->health.size(); ++rank) {
      longest = std::max(longest, epoch_->health.signs_of(rank).expected_step_seconds);
    }
    return longest;
  }

  // Does at once what an event calls for, so that the next event finds the composition and its epoch alike.
  void act() {
    for (auto acts = composition_.take_acts(); !acts.empty(); acts = composition_.take_acts()) {
      for (const Act& one : acts) act(one);
    }
  }

  void act(const Act& act) {
    switch (act.kind) {
      case Act::Kind::start:
        return start_newcomer(act.process);
      case Act::Kind::kill:
        return kill(act.process, "it did not leave the epoch in time");
      case Act::Kind::ask_to_regroup:
        return send_to_members(FromLauncher::Kind::regroup);
      case Act::Kind::tell_to_stop:
        return send_to_members(FromLauncher::Kind::stop);
      case Act::Kind::release:
        send(members_.at(act.process).control, FromLauncher::Kind::go);
        return;
      case Act::Kind::begin_epoch:
        return begin_epoch();
      case Act::Kind::end_job:
        return end_job();
    }
  }

  void send_to_members(FromLauncher::Kind kind) {
    for (const int64_t member : composition_.members()) send(members_.at(member).control, kind);
  }

  void kill(int64_t number, const std::string& because) {
    Member& member = members_.at(number);
    if (member.process->ended) return;
    if (member.killed_because.empty()) member.killed_because = because;
    ::kill(member.process->pid, SIGKILL);
  }

  void begin_epoch() {
    const std::vector<int64_t>& numbers = composition_.members();
    const int64_t size = std::ssize(numbers);
    epoch_ = std::make_unique<WatchedEpoch>(size, started_);
    Epoch epoch{composition_.epoch(), numbers, {}};
    for (const int64_t number : composition_.lost()) {
      const FailureReport& report = members_.at(number).report;
      epoch.lost.push_back({number, report});
      tell(concat(to_string(report), "; the job goes on with ", size, size == 1 ? " rank" : " ranks"));
    }
    for (int64_t rank = 0; rank < size; ++rank) {
      Member& member = members_.at(numbers[rank]);
      epoch_->health.set_process(rank, member.process->pid);
      member.process->errors.set_prefix(prefix_of(rank));
      // Where it does not go, the process is about to be reaped.
      send_epoch(member.control, epoch, rank, epoch_->segment.descriptor());
    }
  }

  // Whoever waits for the next epoch sees the socket closed, and whoever waits for a rank the failure.
  void end_job() {
    if (!end_) end_ = epoch_->health.failure();
    COPUS_CHECK(end_, "a job has failed and nobody has");
    for (auto& [number, member] : members_) member.control = Descriptor();
  }

  int conclude() const {
    const auto process_of = [&](int64_t rank) { return members_.at(composition_.members()[rank]).process; };
    if (!end_) {
      // All end alike, but for those that something happens to then.
      for (int64_t rank = 0; rank < std::ssize(composition_.members()); ++rank) {
        if (WIFEXITED(process_of(rank)->status)) return WEXITSTATUS(process_of(rank)->status);
      }
      return failed_job;
    }
    const RankProcess& first = *process_of(0);
    return processes_.conclude(*end_, first, end_->rank < 0 ? nullptr : process_of(end_->rank));
  }

  const steady_clock::time_point started_;
  const int64_t size_;  // at first
  Composition composition_;
  std::unique_ptr<WatchedEpoch> epoch_;
  RankProcesses processes_;
  std::map<int64_t, Member> members_;  // by number, with those that have ended
  std::optional<FailureReport> end_;   // why the job has failed
};

}  // namespace

int launch_healing_ranks(int64_t size, const std::vector<std::string>& arguments, const Healing& healing) {
  COPUS_CHECK(size >= 1, size);
  return HealingJob(size, arguments, healing).run();
}

}  // namespace copus
