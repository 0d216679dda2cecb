// A model of a small job. The test enumerates all orders of events with a limited number of faults, and visits every
// resulting state of Composition. The model knows which processes' memory holds the latest complete copy of the
// training state; Composition does not.
#include <gtest/gtest.h>

#include <algorithm>
#include <compare>
#include <iostream>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "copus/base/error.h"
#include "copus/comm/job/healing/composition.h"

namespace copus {
namespace {

using Course = Composition::Course;

struct Rules {
  int64_t size = 2;
  int64_t per_machine = 2;
  bool replaces = true;
  bool shards = false;  // each member holds only a part of the state; otherwise each holds all of it
  int64_t faults = 2;
  bool is_start = false;  // ends as training begins; ranks are killed or fail by themselves
  int64_t restarts = 10;  // more than needed, or none: the job is given up although a copy exists
};

class Job {
 public:
  explicit Job(const Rules& rules)
      : composition_(rules.size, rules.replaces, rules.restarts, rules.per_machine),
        is_given_up_(rules.restarts == 0),
        is_start_(rules.is_start),
        first_size_(rules.size),
        faults_left_(rules.faults) {
    for (int64_t number = 0; number < rules.size; ++number) processes_[number].machine = number / rules.per_machine;
  }
  auto operator<=>(const Job&) const = default;

  // Whether all ranks can be started again because nothing is lost.
  bool can_begin_again() const { return composition_.can_begin_again(); }
  Job begun_again(const Rules& rules) const {
    Job job(rules);
    job.faults_left_ = faults_left_;
    job.dawdles_ = dawdles_;
    return job;
  }

  // The names of the possible next events; with `faults`, also of faults that the job has to survive.
  std::vector<std::string> events(bool faults) const {
    if (is_start_ && has_begun()) return {};
    std::vector<std::string> all;
    if (composition_.course() == Course::going_on && !is_settled_ && can_settle()) all.emplace_back("settle");
    for (const auto& [number, process] : processes_) {
      if (!process.is_alive) continue;
      if (process.is_released) all.push_back(concat("exit ", number));
      if (process.is_struck) all.push_back(concat("reap ", number));
      if (process.is_erring) all.push_back(concat("exit by error ", number));
      if (!process.is_struck && !process.is_released && may_become_ready(number))
        all.push_back(concat("ready ", number));
      if (!faults || faults_left_ == 0 || process.is_struck || process.is_released) continue;
      all.push_back(concat("kill ", number));
      if (!is_start_) {
        all.push_back(concat("hang ", number));
        all.push_back(concat("leave ", number));
      }
      if (!process.is_erring && composition_.is_member(number)) all.push_back(concat("err ", number));
    }
    // Members that can leave the epoch do so in time, so only hung members are killed for being late.
    const bool waits_for_hung = std::ranges::none_of(processes_, [&](const auto& entry) {
      const Process& one = entry.second;
      return one.is_alive && !one.is_struck && !one.is_released && !one.is_hung && may_become_ready(entry.first);
    });
    if (composition_.course() != Course::done && ((waits_ < 2 && waits_for_hung) || !faults)) all.emplace_back("wait");
    if (faults && faults_left_ > 0 && !is_start_) {
      all.emplace_back("stop");
      // Newcomers may take too long to set themselves up, but not so often that the launcher gives up. Processes that
      // were killed are reaped before such a wait ends.
      if (dawdles_ < 2 && std::ranges::none_of(processes_, [](const auto& entry) { return entry.second.is_struck; }))
        all.emplace_back("dawdle");
      for (const int64_t machine : machines()) {
        if (machine > 0) all.push_back(concat("lose ", machine));
      }
    }
    return all;
  }

  void happen(const Rules& rules, const std::string& event) {
    const size_t end_of_name = event.find_last_not_of("0123456789");
    const bool has_number = event.at(end_of_name) == ' ';
    const std::string what = has_number ? event.substr(0, end_of_name) : event;
    const int64_t which = has_number ? std::stoll(event.substr(end_of_name)) : -1;
    if (what == "settle") settle(rules);
    if (what == "ready") {
      if (composition_.is_newcomer(which)) waiting_.insert(which);
      composition_.becomes_ready(which);
    }
    if (what == "wait") ++waits_, wait(Composition::leave_within_seconds);
    if (what == "dawdle") ++dawdles_, wait(Composition::set_up_within_seconds);
    const std::set<std::string> faults = {"kill", "hang", "err", "leave", "stop", "lose", "dawdle"};
    if (faults.contains(what)) --faults_left_;
    if (what == "kill") end(which, false);
    if (what == "hang") {
      note_failure(which);
      processes_.at(which).is_hung = true;
      composition_.fails(which);
    }
    // The process reports an error while it unwinds its stack, and then ends by itself or is killed.
    if (what == "err" || what == "exit by error") {
      note_failure(which);
      processes_.at(which).is_erring = true;
      composition_.fails(which, /*by_own_error=*/true);
    }
    if (what == "exit by error") end(which, false);
    if (what == "leave") composition_.asks_to_leave(which);
    if (what == "stop") composition_.stop();
    if (what == "reap") end(which, false);
    if (what == "exit") end(which, true);
    if (what == "lose") lose(which);
    act();
  }

  // The first violated rule; empty: none.
  const std::string& wrong() const { return wrong_; }
  // Whether the job trains, or has ended with a message.
  bool is_at_rest() const {
    if (composition_.course() != Course::going_on || (is_start_ && has_begun())) return true;
    return is_settled_ && !composition_.epoch_is_to_end();
  }
  std::string course() const {
    return can_begin_again()                         ? "begins again"
           : composition_.course() == Course::failed ? "failed"
           : composition_.course() == Course::done   ? "done"
                                                     : "trains";
  }

 private:
  struct Process {
    int64_t machine = 0;
    bool is_alive = true, is_released = false;
    bool is_hung = false;
    bool is_erring = false;  // has met an error of its own and has not ended
    bool is_struck = false;  // has been killed and not yet reaped
    auto operator<=>(const Process&) const = default;
  };

  std::set<int64_t> machines() const {
    std::set<int64_t> all;
    for (const auto& [number, process] : processes_) {
      if (!lost_machines_.contains(process.machine)) all.insert(process.machine);
    }
    return all;
  }

  bool may_become_ready(int64_t number) const {
    if (processes_.at(number).is_erring) return false;
    if (composition_.is_newcomer(number)) return !waiting_.contains(number);
    const bool is_at_work =
        composition_.rank_of(number) && composition_.is_member(number) && !composition_.is_ready(number);
    // Members leave an epoch that is to end, after they have settled or seen a failure.
    const bool has_reason = is_settled_ || has_failure_;
    return is_at_work && has_reason && composition_.course() == Course::going_on && composition_.epoch_is_to_end();
  }

  bool is_readable(int64_t owner) const { return !lost_machines_.contains(processes_.at(owner).machine); }
  // Whether a member is on the machine of the process that owned this memory.
  bool reaches(int64_t owner) const {
    return std::ranges::any_of(composition_.members(), [&](int64_t member) {
      const Process& one = processes_.at(member);
      return one.is_alive && one.machine == processes_.at(owner).machine && is_readable(owner);
    });
  }
  // Whether every part of some copy is reachable.
  bool has_copy(const auto& can_reach) const {
    return std::ranges::any_of(copies_, [&](const auto& owners) { return std::ranges::all_of(owners, can_reach); });
  }
  bool can_settle() const {
    const bool all_alive = std::ranges::all_of(composition_.members(), [&](int64_t member) {
      const Process& one = processes_.at(member);
      return one.is_alive && !one.is_struck && !one.is_erring && !composition_.is_ready(member);
    });
    return all_alive && !has_failure_;
  }

  void settle(const Rules& rules) {
    is_settled_ = true;
    has_hurried_ = false;
    copies_.clear();
    const auto staying = composition_.members().end() - composition_.num_parting();
    const std::set<int64_t> all(composition_.members().begin(), staying);
    if (rules.shards) {
      copies_.insert(all);
    } else {
      for (const int64_t member : all) copies_.insert({member});
    }
    composition_.has_begun();
  }

  void end(int64_t number, bool in_good_order) {
    Process& process = processes_.at(number);
    if (!process.is_alive) return;
    const bool ends_all = process.is_erring && !has_begun() && composition_.course() == Course::going_on;
    process.is_alive = process.is_struck = process.is_erring = false;
    if (!in_good_order) note_failure(number);
    waiting_.erase(number);
    composition_.ends(number, in_good_order);
    if (!ends_all) return;
    is_refused_ = true;
    if (composition_.course() != Course::failed) complain("a job goes on whose rank failed by itself before it began");
  }

  bool has_begun() const { return !copies_.empty(); }

  void note_failure(int64_t number) {
    has_failure_ = has_failure_ || (composition_.rank_of(number) && composition_.is_member(number));
  }

  void lose(int64_t machine) {
    lost_machines_.insert(machine);
    for (const auto& [number, process] : processes_) {
      if (process.machine != machine) continue;
      composition_.cannot_be_replaced(number);
      if (process.is_alive && composition_.rank_of(number) && composition_.is_member(number))
        composition_.fails(number);
    }
    for (auto& [number, process] : processes_) {
      if (process.machine == machine) end(number, false);
    }
  }

  void wait(double seconds) {
    for (double passed = 0; passed <= seconds; passed += 0.5) composition_.pass(0.5, 0);
  }

  void act() {
    for (const Act& act : composition_.take_acts()) {
      switch (act.kind) {
        case Act::Kind::start:
          if (processes_.contains(act.process)) complain(concat("process ", act.process, " is started twice"));
          processes_[act.process].machine = processes_.at(act.replaces).machine;
          if (!is_readable(act.process)) complain("a process is started on a machine that is gone");
          break;
        case Act::Kind::kill:
          processes_.at(act.process).is_struck = processes_.at(act.process).is_alive;
          break;
        case Act::Kind::release:
          processes_.at(act.process).is_released = true;
          break;
        case Act::Kind::tell_to_stop:
          is_stopped_ = true;
          break;
        case Act::Kind::begin_epoch:
          begin();
          break;
        default:
          break;
      }
    }
    const bool is_there = has_copy([&](int64_t owner) { return is_readable(owner); });
    if (composition_.course() == Course::failed && is_there && !is_given_up_) {
      complain("the job has failed, and a complete copy of its state can be reached");
    }
    if (composition_.can_begin_again()) {
      if (has_begun()) complain("a job may begin again that has begun");
      if (is_refused_) complain("a job may begin again whose rank failed by itself");
      if (is_stopped_) complain("a job may begin again that is to stop");
      if (!lost_machines_.empty()) complain("a job may begin again that has lost a machine");
    }
    const bool was_only_struck = !has_begun() && !is_refused_ && !is_stopped_ && lost_machines_.empty();
    if (composition_.course() == Course::failed && was_only_struck && !composition_.can_begin_again()) {
      complain("the job has failed, whose ranks were only killed before it began");
    }
  }

  void begin() {
    is_settled_ = has_failure_ = false;
    waiting_.clear();
    for (const int64_t member : composition_.members()) {
      const Process& process = processes_.at(member);
      if (!process.is_alive || process.is_struck)
        complain(concat("an epoch begins with process ", member, ", which is gone"));
    }
    for (const auto& [number, process] : processes_) {
      if (process.is_struck && std::ranges::find(before_, number) != before_.end()) {
        complain(concat("an epoch begins before process ", number, ", which was killed, has been reaped"));
      }
    }
    const std::set<int64_t> unique(composition_.members().begin(), composition_.members().end());
    if (unique.size() != composition_.members().size()) complain("a process is a member twice");
    before_ = composition_.members();
    const bool knows_the_run =
        std::ranges::any_of(composition_.members(), [&](int64_t one) { return one < first_size_; });
    if (!has_begun() && !knows_the_run) complain("newcomers alone begin a run that they do not know");
    const bool is_there = has_copy([&](int64_t owner) { return is_readable(owner); });
    const bool is_reached = has_copy([&](int64_t owner) { return reaches(owner); });
    // A stopping job waits for another machine less long than a running job does.
    has_hurried_ = has_hurried_ || (is_stopped_ && (dawdles_ > 0 || waits_ > 0));
    if (is_there && !is_reached && !has_hurried_)
      complain("an epoch begins, and no member reaches the copy that there is");
    if (composition_.course() != Course::going_on) complain("an epoch begins in a job that has ended");
    waits_ = 0;
  }

  void complain(const std::string& what) {
    if (wrong_.empty()) wrong_ = what;
  }

  Composition composition_;
  std::map<int64_t, Process> processes_;
  std::set<int64_t> waiting_, lost_machines_;
  std::set<std::set<int64_t>> copies_;
  std::vector<int64_t> before_;
  bool is_given_up_;  // if all ranks have ended
  bool is_start_;
  int64_t first_size_;
  int64_t faults_left_;
  int64_t dawdles_ = 0;
  int64_t waits_ = 0;         // in this epoch; further waits change nothing
  bool has_failure_ = false;  // in this epoch
  bool is_settled_ = false, is_stopped_ = false;
  bool is_refused_ = false;   // a rank failed by itself before the job began
  bool has_hurried_ = false;  // since it last settled
  std::string wrong_;
};

// Whether the job comes to rest if no more faults happen.
bool comes_to_rest(Job job, const Rules& rules) {
  constexpr int64_t most_events = 300;
  for (int64_t i = 0; i < most_events; ++i) {
    if (job.is_at_rest() || !job.wrong().empty()) return true;
    for (const std::string& event : job.events(/*faults=*/false)) {
      const std::vector<std::string> now = job.events(false);
      if (std::ranges::find(now, event) != now.end()) job.happen(rules, event);
    }
  }
  return false;
}

void explore(const Rules& rules) {
  constexpr int64_t most_states = 500'000;
  struct Visit {
    const Job* job;
    int64_t before;     // the visit before this one
    std::string event;  // the event that led from it here
  };
  std::set<Job> seen;
  std::vector<Visit> visits;
  const auto visit = [&](Job job, int64_t before, const std::string& event) {
    const auto [place, is_new] = seen.insert(std::move(job));
    if (is_new) visits.push_back({&*place, before, event});
  };
  const auto story = [&](int64_t end) {
    std::string text;
    for (int64_t at = end; at > 0; at = visits[at].before) {
      text = concat(visits[at].event, text.empty() ? "" : ", ", text);
    }
    return text;
  };
  std::map<std::string, int64_t> ends;
  visit(Job(rules), 0, "");
  for (int64_t at = 0; at < std::ssize(visits); ++at) {
    ASSERT_LT(at, most_states);
    const Job& job = *visits[at].job;
    ASSERT_EQ(job.wrong(), "") << story(at);
    ASSERT_TRUE(comes_to_rest(job, rules)) << "neither trains nor ends after " << story(at);
    if (job.is_at_rest()) ++ends[job.course()];
    if (job.can_begin_again()) visit(job.begun_again(rules), at, "begin again");
    for (const std::string& event : job.events(/*faults=*/true)) {
      Job after = job;
      after.happen(rules, event);
      visit(std::move(after), at, event);
    }
  }
  std::cout << seen.size() << " states; at rest:";
  for (const auto& [end, count] : ends) std::cout << " " << end << " " << count;
  std::cout << "\n";
  EXPECT_GT(ends["trains"], 10);
}

TEST(CompositionModel, NoCopyIsLostAndEveryStateComesToRestOnOneMachine) {
  explore({.size = 1, .faults = 4});
  explore({.size = 2, .faults = 3});
  explore({.size = 2, .shards = true});
  explore({.size = 2, .replaces = false});
  explore({.size = 2, .replaces = false, .restarts = 0});
}

TEST(CompositionModel, AJobWhoseRanksAreStruckBeforeItBeginsBeginsAgainUnlessOneFailedByItself) {
  explore({.size = 3, .per_machine = 3, .faults = 4, .is_start = true});
}

TEST(CompositionModel, NoCopyIsLostAndEveryStateComesToRestOnTwoMachines) {
  explore({.size = 2, .per_machine = 1});
  explore({.size = 2, .per_machine = 1, .shards = true, .faults = 3});
  explore({.size = 3, .per_machine = 2, .shards = true, .faults = 1});
}

}  // namespace
}  // namespace copus
