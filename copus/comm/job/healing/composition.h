// Tracks the membership of a job whose ranks come and go. Composition records which processes are members of the
// current epoch and which processes are ready for the next one. From these records it decides which actions the
// launcher must take. Its inputs are events. It uses no processes, sockets or clocks. A newcomer is a process that the
// launcher has started, or is about to start, and that has not been a member of an epoch yet.
#pragma once

#include <compare>
#include <cstdint>
#include <limits>
#include <map>
#include <optional>
#include <set>
#include <utility>
#include <vector>

namespace copus {

// An action that the launcher has to take.
struct Act {
  enum class Kind {
    start,           // a process with this number, to replace another one
    kill,            // this process, which does not end by itself
    ask_to_regroup,  // all members: leave the epoch at the end of a step
    release,         // tell this process to end
    begin_epoch,     // with members(), after lost()
    tell_to_stop,    // all members: end the job in good order
    end_job,         // all remaining processes get some seconds to end by themselves
  };
  Kind kind;
  int64_t process = -1;
  int64_t replaces = -1;  // start: the process that it replaces
  auto operator<=>(const Act&) const = default;
};

class Composition {
 public:
  // How long a failed process, or every process of a failed job, may take to end by itself. For a process that has
  // reported an error of its own, kill_after_own_error_seconds applies instead.
  static constexpr double kill_after_seconds = 1.5;
  // How long a process that has reported an error of its own may take to unwind its stack and end. Only its exit code
  // and message show whether the user made a mistake, so it gets more time than other processes. The time is still
  // within the 5 s in which a job ends.
  static constexpr double kill_after_own_error_seconds = 4;
  // Members have this long to leave an epoch, or two steps if that is longer.
  static constexpr double leave_within_seconds = 10;
  // Newcomers for which the others wait have this long to set themselves up.
  static constexpr double set_up_within_seconds = 120;
  // Pauses before newcomers are started. The first newcomer that ends before it is ready is replaced at once. If its
  // replacement also ends early, the next one is started after first_pause_seconds. Each further pause is twice as long
  // as the previous one, up to longest_pause_seconds.
  static constexpr double first_pause_seconds = 0.5;
  static constexpr double longest_pause_seconds = 300;
  // If only newcomers can read the memory kept on a machine: the longest pause, and the time after which no more
  // newcomers are started.
  static constexpr double longest_pause_where_needed = 4;
  static constexpr double bring_back_within_seconds = 300;

  // done: a member has ended in good order, or the last members have been released. Members end in good order only when
  // all work is done, so a later failure of another member does no harm. failed: the job ends as a failure.
  enum class Course { going_on, done, failed };

  // Processes 0 to size - 1 are the members of the first epoch, with `members_per_machine` on each machine. `replaces`:
  // whether a failed process is replaced.
  //
  // Only a process on the same machine can read the memory of ended members. So if all members of a machine have ended
  // and it has no newcomer, newcomers are started there, even if `replaces` is false, up to `restarts` times without
  // progress. The next epoch waits for these newcomers.
  explicit Composition(int64_t size, bool replaces, int64_t restarts = 0,
                       int64_t members_per_machine = std::numeric_limits<int64_t>::max());

  // Comparable, so that tests can enumerate the states.
  auto operator<=>(const Composition&) const = default;

  int64_t epoch() const { return epoch_; }
  // The members of the epoch, by rank. Rank 0 was a member of the previous epoch, or is a newcomer on a machine whose
  // previous members have all ended. The last `num_parting` members have asked to leave. Parting members stay until an
  // epoch has ended without a failure, so that the other members can take over the state that only parting members
  // hold. Then the parting members are released.
  const std::vector<int64_t>& members() const { return members_; }
  int64_t num_parting() const { return num_parting_; }
  std::optional<int64_t> rank_of(int64_t process) const;             // empty: not a member
  const std::vector<int64_t>& lost() const { return lost_before_; }  // members of the previous epoch
  Course course() const { return course_; }
  // Returns whether the job has failed before training began, so that all its ranks can be started again without loss.
  // False if a rank failed by an error of its own or if the job was asked to end.
  bool can_begin_again() const;
  // Returns whether a process is a member of the epoch. A member that has left the epoch in good order remains a member
  // until it is released or ends.
  bool is_member(int64_t process) const { return is_member(processes_.at(process)); }
  // Whether this member has left the epoch in good order.
  bool is_ready(int64_t process) const;
  // Whether the process was started to replace another one and has not been in an epoch yet.
  bool is_newcomer(int64_t process) const;
  // Whether a newcomer will be started after a pause.
  bool has_delayed() const;
  // The seconds until a replacement for this process is started; 0 if the replacement has already been started. Empty
  // if the process is not replaced.
  std::optional<double> pause_before_replacing(int64_t process) const;
  // Whether members have a reason to leave the epoch.
  bool epoch_is_to_end() const { return failing_ || asked_ || course_ != Course::going_on; }

  // Events. A process that becomes ready has left its epoch or, if it is a newcomer, has finished its set-up.
  void becomes_ready(int64_t process);
  // A member asks to leave. If all remaining members want to leave, the job stops, because no member would continue.
  void asks_to_leave(int64_t process);
  // Records that a member of the epoch has failed. The member must end soon if it has not ended already.
  // `by_own_error`: the member reported the error itself.
  void fails(int64_t process, bool by_own_error = false);
  // Records that the process has ended and been reaped. `in_good_order`: it ended as ranks do at the end of a job. If a
  // member ends by an error of its own before training has begun, the job ends.
  void ends(int64_t process, bool in_good_order);
  // The machine of this process is gone or is leaving, so the process cannot be replaced.
  void cannot_be_replaced(int64_t process);
  // Records that a member has left the epoch although it was not asked to: all work is done, and this member waits for
  // the others to finish too.
  void comes_to_the_end();
  // Ends the job after a signal, or because the remaining members cannot take over the state of leaving members. After
  // this, no process joins or leaves. Only newcomers that are needed to read the memory kept on a machine still join.
  void stop();
  // After a second signal no process is started at all.
  void stop_at_once();
  // Records a failure from which the job cannot recover.
  void fail_job();
  // Training has begun: from now on failed members can be restarted.
  void has_begun() { has_begun_ = true; }
  // Training has passed the furthest step reached so far.
  void advances() { restarts_left_ = restarts_; }
  // Advances the time by `seconds`, but by at most half a second: a longer gap means that the launcher itself was
  // stopped, and the other processes probably were too. `step_seconds` is an upper bound for the members' steps.
  void pass(double seconds, double step_seconds);

  // Returns the actions to take since the last call, in order.
  std::vector<Act> take_acts() { return std::exchange(acts_, {}); }

 private:
  enum class State {
    delayed,   // a newcomer that will be started after a pause
    starting,  // a newcomer that is setting itself up
    waiting,   // a newcomer that is ready
    at_work,   // a member
    ready,     // a member that has left the epoch
    released,  // told to end
    ended,
  };
  struct Process {
    State state = State::starting;
    bool leaving = false;
    bool failing = false;
    bool by_own_error = false;  // the member has reported its failure itself
    bool killed = false;
    bool replaceable = true;
    bool replaced = false;   // another process has been started to replace it
    bool is_needed = false;  // it was started because its machine has no members left
    bool hangs = false;      // it was killed because it did not set itself up in time
    int64_t machine = 0;
    int64_t replaces = -1;
    int64_t early_ends = 0;  // number of newcomers in a row that ended early before it
    double pause = 0;        // remaining pause before its start
    double seconds = 0;      // how long the others have waited for it to set itself up
    auto operator<=>(const Process&) const = default;
  };

  static bool is_member(const Process& process) {
    return process.state == State::at_work || process.state == State::ready;
  }
  static bool is_newcomer(const Process& process) {
    return !process.killed && (process.state == State::starting || process.state == State::waiting);
  }
  void settle();
  bool has_parted(int64_t member) const;
  void begin_next();
  std::set<int64_t> machines_without(const std::vector<int64_t>& left) const;
  bool waits_for_newcomers(const std::set<int64_t>& machines);
  void finish(Course course);
  void replace(int64_t process, bool anyway = false, int64_t early_ends = 0);
  void start(int64_t process);
  void pass_pauses(double seconds);
  void give_up_newcomer(int64_t process);
  void release(int64_t process);
  void kill(int64_t process);
  void begin_to_wait();

  const int64_t first_size_;
  const bool replaces_;
  const int64_t restarts_;
  int64_t restarts_left_ = restarts_;
  bool has_begun_ = false;
  int64_t epoch_ = 0;
  std::vector<int64_t> members_;
  int64_t num_parting_ = 0;
  std::vector<int64_t> lost_, lost_before_;  // in this epoch; in the previous one
  std::map<int64_t, Process> processes_;
  int64_t next_number_;
  Course course_ = Course::going_on;
  bool nobody_is_left_ = false;  // nobody can begin or continue the run
  bool failing_ = false;         // a member has failed in this epoch
  bool asked_ = false;           // the members have been asked to leave this epoch
  bool stopping_ = false;
  bool at_once_ = false;
  bool waits_ = false;         // whether the job waits for members to leave, or for all processes to end
  double waited_seconds_ = 0;  // since this wait began
  std::vector<Act> acts_;
};

}  // namespace copus
