#include "copus/comm/job/healing/composition.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "copus/base/error.h"

namespace copus {

namespace {

constexpr double most_seconds_at_once = 0.5;
constexpr double patience_in_steps = 2;

double pause_after(int64_t early_ends) {
  if (early_ends < 2) return 0;
  return std::min(Composition::longest_pause_seconds,
                  std::ldexp(Composition::first_pause_seconds, static_cast<int>(early_ends - 2)));
}

}  // namespace

Composition::Composition(int64_t size, bool replaces, int64_t restarts, int64_t members_per_machine)
    : first_size_(size), replaces_(replaces), restarts_(restarts), members_(size), next_number_(size) {
  COPUS_CHECK(size > 0 && members_per_machine > 0, size, " members, ", members_per_machine, " on a machine");
  std::iota(members_.begin(), members_.end(), 0);
  for (const int64_t process : members_) {
    processes_[process] = {.state = State::at_work, .machine = process / members_per_machine};
  }
}

std::optional<int64_t> Composition::rank_of(int64_t process) const {
  const auto found = std::ranges::find(members_, process);
  if (found == members_.end()) return std::nullopt;
  return found - members_.begin();
}

bool Composition::is_ready(int64_t process) const { return processes_.at(process).state == State::ready; }

bool Composition::is_newcomer(int64_t process) const { return is_newcomer(processes_.at(process)); }

void Composition::becomes_ready(int64_t process) {
  Process& one = processes_.at(process);
  if (one.state == State::starting) {
    one.state = State::waiting;
    if (one.leaving) release(process);
  } else if (one.state == State::at_work) {
    one.state = State::ready;
    if (asked_ && process == members_.front()) begin_to_wait();
  }
  settle();
}

void Composition::asks_to_leave(int64_t process) {
  if (stopping_ || course_ != Course::going_on) return;
  Process& one = processes_.at(process);
  one.leaving = true;
  if (one.state == State::waiting) release(process);
  const auto leaves = [&](int64_t member) { return processes_.at(member).leaving; };
  if (std::ranges::all_of(members_, leaves)) stop();
  settle();
}

void Composition::fails(int64_t process, bool by_own_error) {
  Process& one = processes_.at(process);
  one.failing = is_member(one);
  one.by_own_error = one.failing && (one.by_own_error || by_own_error);
  if (course_ == Course::done && one.failing) kill(process);
  if (course_ != Course::going_on) return;
  if (!std::exchange(failing_, true)) {
    waits_ = false;
    begin_to_wait();
  }
  settle();
}

void Composition::ends(int64_t process, bool in_good_order) {
  Process& one = processes_.at(process);
  const Process before = one;
  one.state = State::ended;
  one.failing = one.by_own_error = one.killed = false;
  const bool goes_on = course_ == Course::going_on;
  if (is_newcomer(before) || before.hangs) {
    const int64_t early_ends = before.state == State::starting ? before.early_ends + 1 : 0;
    if (goes_on && !before.leaving) replace(process, before.is_needed, early_ends);
  } else if (is_member(before)) {
    if (!in_good_order) lost_.push_back(process);
    if (goes_on && before.by_own_error && !has_begun_) {
      finish(Course::failed);  // all ranks are set up in the same way, so a replacement would fail too
    } else if (goes_on && !in_good_order) {
      fails(process);
    } else if (goes_on) {
      finish(Course::done);
    }
  }
  settle();
}

void Composition::cannot_be_replaced(int64_t process) {
  processes_.at(process).replaceable = false;
  for (auto& [number, next] : processes_) {
    if (next.replaces == process && next.state == State::delayed) next.state = State::ended;
  }
}

void Composition::comes_to_the_end() {
  if (!epoch_is_to_end()) finish(Course::done);
}

void Composition::stop() {
  if (std::exchange(stopping_, true)) return;
  acts_.push_back({Act::Kind::tell_to_stop});
  for (auto& [number, process] : processes_) {
    if (is_member(process)) process.leaving = false;
    if (!process.is_needed) give_up_newcomer(number);
  }
}

void Composition::stop_at_once() {
  stop();
  at_once_ = true;
  for (const auto& [number, process] : processes_) give_up_newcomer(number);
  settle();
}

void Composition::give_up_newcomer(int64_t process) {
  Process& one = processes_.at(process);
  if (one.state == State::delayed) one.state = State::ended;
  if (is_newcomer(one)) kill(process);
}

void Composition::fail_job() { finish(Course::failed); }

void Composition::pass(double seconds, double step_seconds) {
  seconds = std::min(seconds, most_seconds_at_once);
  pass_pauses(seconds);
  if (!waits_) return;
  waited_seconds_ += seconds;
  const double patience = std::max(leave_within_seconds, patience_in_steps * step_seconds);
  for (const auto& [number, process] : processes_) {
    if (process.state == State::ended) continue;
    if (failing_ && process.state == State::starting) {
      Process& newcomer = processes_.at(number);
      newcomer.seconds += seconds;
      if (newcomer.seconds < set_up_within_seconds || newcomer.killed) continue;
      newcomer.hangs = true;
      kill(number);
      continue;
    }
    const bool ends = process.failing || course_ == Course::failed;
    const double time_to_end = process.by_own_error ? kill_after_own_error_seconds : kill_after_seconds;
    if (ends ? waited_seconds_ >= time_to_end : process.state == State::at_work && waited_seconds_ >= patience) {
      kill(number);
    }
  }
  settle();  // newcomers that the members waited for may have been given up
}

void Composition::pass_pauses(double seconds) {
  for (auto& [number, process] : processes_) {
    if (process.state != State::delayed) continue;
    process.pause -= seconds;
    if (process.pause <= 0) start(number);
  }
}

// Begins the next epoch, or asks members to regroup, if that is now possible.
void Composition::settle() {
  if (course_ != Course::going_on) return;
  if (failing_ || asked_) {
    const bool all_there = std::ranges::all_of(members_, [&](int64_t member) {
      const Process& process = processes_.at(member);
      return process.state == State::ended || (process.state == State::ready && !process.failing && !process.killed);
    });
    if (all_there) begin_next();
    return;
  }
  const bool wanted = std::ranges::any_of(processes_, [&](const auto& entry) {
    return entry.second.state == State::waiting || (is_member(entry.second) && entry.second.leaving);
  });
  if (!wanted || stopping_) return;
  asked_ = true;
  acts_.push_back({Act::Kind::ask_to_regroup});
}

// Returns whether this leaving member has handed over its state: the other members took it over in an epoch that ended
// without a failure.
bool Composition::has_parted(int64_t member) const {
  return !failing_ && *rank_of(member) >= std::ssize(members_) - num_parting_;
}

void Composition::begin_next() {
  std::vector<int64_t> stay, parting, go;
  for (const int64_t member : members_) {
    const Process& process = processes_.at(member);
    if (process.state != State::ready) continue;
    (!process.leaving ? stay : has_parted(member) ? go : parting).push_back(member);
  }
  std::vector<int64_t> left = stay;
  for (const auto& others : {parting, go}) left.insert(left.end(), others.begin(), others.end());
  const std::set<int64_t> orphaned = machines_without(left);
  // A stopping job has little time. So it does not wait for newcomers on a machine whose members have all ended,
  // because the state on the other machines may suffice.
  const bool hurries = stopping_ && !left.empty() && waited_seconds_ >= leave_within_seconds;
  if (!hurries && waits_for_newcomers(orphaned)) return;
  const auto can_join = [](const Process& process) {  // a ready newcomer whose machine is not leaving
    return process.state == State::waiting && !process.killed && process.replaceable;
  };
  const bool has_newcomers = std::ranges::any_of(processes_, [&](const auto& entry) { return can_join(entry.second); });
  // Before training has begun, only the initial processes know the run's plan.
  const auto knows_the_run = [&](int64_t process) { return has_begun_ || process < first_size_; };
  if (std::ranges::none_of(left, knows_the_run) && !(has_newcomers && has_begun_)) {
    nobody_is_left_ = true;
    return finish(Course::failed);
  }
  if (stay.empty() && !parting.empty()) {
    // All remaining members want to leave, but nobody else has the training state. (On machines without members, only
    // newcomers can read it.) So these members and newcomers form one more epoch, which stops the job.
    std::swap(stay, parting);
    for (auto& [number, process] : processes_) {
      if (!can_join(process) || !orphaned.contains(process.machine)) continue;
      process.state = State::ready;
      stay.push_back(number);
    }
    stop();
  }
  for (const int64_t process : go) release(process);
  if (stay.empty() && !go.empty()) return finish(Course::done);
  members_ = stay;
  std::vector<int64_t> late;
  for (const auto& [number, process] : processes_) {
    if (!can_join(process)) continue;
    const bool is_needed = orphaned.contains(process.machine);
    (stay.empty() || is_needed || number > stay.front() ? members_ : late).push_back(number);
  }
  std::ranges::sort(members_);
  members_.insert(members_.end(), parting.begin(), parting.end());
  num_parting_ = std::ssize(parting);
  const bool some_have_come =
      std::ranges::any_of(members_, [&](int64_t member) { return processes_.at(member).state == State::waiting; });
  for (const int64_t member : members_) processes_.at(member).state = State::at_work;
  for (auto& [number, process] : processes_) process.is_needed = false;  // from now on every machine has members
  lost_before_ = std::exchange(lost_, {});
  ++epoch_;
  failing_ = asked_ = waits_ = false;
  acts_.push_back({Act::Kind::begin_epoch});
  if (stopping_ && some_have_come) acts_.push_back({Act::Kind::tell_to_stop});
  for (const int64_t process : lost_before_) {
    if (!processes_.at(process).leaving) replace(process);
  }
  // Ranks are ordered by process number, and rank 0 must have been a member before. So a newcomer with a smaller number
  // than all earlier members is replaced by a newcomer with a new, larger number.
  for (const int64_t process : late) {
    kill(process);
    replace(process);
  }
  if (num_parting_ > 0) settle();  // parting members may already be ready for the next epoch
}

// Returns the machines whose launcher is present and whose members have all ended; at least one was lost.
std::set<int64_t> Composition::machines_without(const std::vector<int64_t>& left) const {
  std::set<int64_t> machines;
  if (at_once_ || !has_begun_) return machines;
  for (const int64_t process : lost_) {
    if (processes_.at(process).replaceable) machines.insert(processes_.at(process).machine);
  }
  for (const int64_t process : left) machines.erase(processes_.at(process).machine);
  return machines;
}

// `machines`: machines that keep the memory of ended ranks. Only new processes on such a machine can read this memory.
// Starts new processes on machines that have none yet, and returns whether the next epoch has to wait for new
// processes.
bool Composition::waits_for_newcomers(const std::set<int64_t>& machines) {
  const auto has = [&](int64_t machine, const auto& one_that) {
    return std::ranges::any_of(
        processes_, [&](const auto& entry) { return entry.second.machine == machine && one_that(entry.second); });
  };
  const auto is_delayed = [](const Process& one) { return one.state == State::delayed; };
  const auto sets_up = [](const Process& one) { return one.state == State::starting && (!one.killed || one.hangs); };
  const auto is_there = [](const Process& one) { return one.state == State::waiting && !one.killed; };
  std::set<int64_t> empty;
  for (const int64_t machine : machines) {
    if (!has(machine, is_delayed) && !has(machine, sets_up) && !has(machine, is_there)) empty.insert(machine);
  }
  if (!empty.empty() && restarts_left_ > 0 && waited_seconds_ < bring_back_within_seconds) {
    --restarts_left_;
    for (const int64_t process : lost_) {
      if (empty.contains(processes_.at(process).machine)) replace(process, /*anyway=*/true);
    }
  }
  for (auto& [number, process] : processes_) {
    const bool may_come = is_delayed(process) || sets_up(process) || is_there(process);
    if (!may_come || !machines.contains(process.machine)) continue;
    process.is_needed = true;
    process.pause = std::min(process.pause, longest_pause_where_needed);
  }
  return std::ranges::any_of(machines, [&](int64_t machine) {
    return has(machine, sets_up) || (has(machine, is_delayed) && !has(machine, is_there));
  });
}

bool Composition::can_begin_again() const {
  const auto is_replaceable = [](const auto& entry) { return entry.second.replaceable; };
  return course_ == Course::failed && nobody_is_left_ && !has_begun_ && !stopping_ &&
         std::ranges::all_of(processes_, is_replaceable);
}

bool Composition::has_delayed() const {
  return std::ranges::any_of(processes_, [](const auto& entry) { return entry.second.state == State::delayed; });
}

std::optional<double> Composition::pause_before_replacing(int64_t process) const {
  const auto found = std::ranges::find_if(processes_, [&](const auto& entry) {
    return entry.second.replaces == process && entry.second.state != State::ended;
  });
  return found == processes_.end() ? std::nullopt : std::optional(found->second.pause);
}

void Composition::finish(Course course) {
  if (course_ == Course::failed || course_ == course) return;
  course_ = course;
  waits_ = false;
  for (const auto& [number, process] : processes_) {
    give_up_newcomer(number);
    // The process may be a spare that waits for the end of the epoch. Its end must still be counted.
    if (course != Course::done || !is_member(process)) continue;
    acts_.push_back({Act::Kind::release, number});
    if (process.failing) kill(number);
  }
  if (course != Course::failed) return;
  acts_.push_back({Act::Kind::end_job});
  begin_to_wait();
}

void Composition::replace(int64_t process, bool anyway, int64_t early_ends) {
  Process& before = processes_.at(process);
  if ((anyway ? at_once_ : stopping_) || !before.replaceable) return;
  if (anyway ? waited_seconds_ >= bring_back_within_seconds : !replaces_ || before.replaced) return;
  before.replaced = true;
  const int64_t number = next_number_++;
  const double pause = pause_after(early_ends);
  processes_[number] = {.state = State::delayed,
                        .is_needed = anyway,
                        .machine = before.machine,
                        .replaces = process,
                        .early_ends = early_ends,
                        .pause = anyway ? std::min(pause, longest_pause_where_needed) : pause};
  if (pause == 0) start(number);
}

void Composition::start(int64_t process) {
  Process& one = processes_.at(process);
  one.state = State::starting;
  one.pause = 0;
  acts_.push_back({Act::Kind::start, process, one.replaces});
}

void Composition::release(int64_t process) {
  processes_.at(process).state = State::released;
  acts_.push_back({Act::Kind::release, process});
}

void Composition::kill(int64_t process) {
  if (std::exchange(processes_.at(process).killed, true)) return;
  acts_.push_back({Act::Kind::kill, process});
}

void Composition::begin_to_wait() {
  if (std::exchange(waits_, true)) return;
  waited_seconds_ = 0;
}

}  // namespace copus
