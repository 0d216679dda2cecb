// Who belongs to a job whose ranks come and go: which processes are members of its epoch, who of them is ready for the
// next one, and what its launcher is to do. It is told what happens, and knows no processes, sockets or clocks.
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

// What the launcher is to do next.
struct Act {
  enum class Kind {
    start,           // a process with this number, to replace another one
    kill,            // this process, which ends no more by itself
    ask_to_regroup,  // all members: leave the epoch at the end of a step
    release,         // tell this process that it may go
    begin_epoch,     // of members(), after lost()
    tell_to_stop,    // all members: end the job in good order
    end_job,         // all that are left get some seconds to end by themselves
  };
  Kind kind;
  int64_t process = -1;
  int64_t replaces = -1;  // start: the process that it is started for
  auto operator<=>(const Act&) const = default;
};

class Composition {
 public:
  // A failed process, and every process of a failed job, gets this long to end by itself, unless it reported an error
  // of its own.
  static constexpr double kill_after_seconds = 1.5;
  // One that reports an error of its own does so while it still unwinds. Only its exit code and its message tell
  // whether the user made a mistake, so it gets more time, within the 5 s in which a job ends.
  static constexpr double kill_after_own_error_seconds = 4;
  // Members get this long to leave an epoch, or two steps where these take longer.
  static constexpr double leave_within_seconds = 10;
  // Newcomers that the others wait for get this long to set themselves up.
  static constexpr double set_up_within_seconds = 120;
  // When a newcomer ends before it is ready, another one is started at once. When that one ends early too, the next
  // waits for the first pause, and each further one for twice the pause before it, up to the longest.
  static constexpr double first_pause_seconds = 0.5;
  static constexpr double longest_pause_seconds = 300;
  // Where nobody else can read the memory that is kept on a machine, the longest pause is this, and newcomers are
  // started for this long in all.
  static constexpr double longest_pause_where_needed = 4;
  static constexpr double bring_back_within_seconds = 300;

  // done: a member has ended in good order, as they do together once all is done, so that whatever happens to others
  // then costs nothing; or the last ones have been released. failed: the job ends as a failure.
  enum class Course { going_on, done, failed };

  // Processes 0 to size - 1 are the members of the first epoch, `members_per_machine` on each machine. Where all
  // members of a machine have ended and no newcomer is there, others are started in their places, even where `replaces`
  // is false, up to `restarts` times without progress. The next epoch waits for them: only they can read the memory
  // that is kept on their machine.
  explicit Composition(int64_t size, bool replaces, int64_t restarts = 0,
                       int64_t members_per_machine = std::numeric_limits<int64_t>::max());

  // States can be told apart, so that all of them can be gone through.
  auto operator<=>(const Composition&) const = default;

  int64_t epoch() const { return epoch_; }
  // The members of the epoch, by rank. The first has been a member of the epoch before, unless it is a newcomer on a
  // machine whose members have all ended. The last `num_parting` want to leave. They stay for one more epoch, in which
  // the others take over what they alone hold, and are released once an epoch has ended without a failure.
  const std::vector<int64_t>& members() const { return members_; }
  int64_t num_parting() const { return num_parting_; }
  std::optional<int64_t> rank_of(int64_t process) const;             // empty: no member
  const std::vector<int64_t>& lost() const { return lost_before_; }  // members of the epoch before
  Course course() const { return course_; }
  // Whether a failed job has nothing to lose: its ranks ended before training began, none of them by an error of its
  // own, and nobody asked the job to end. All ranks can then be started again.
  bool can_begin_again() const;
  // Whether a process takes part in the epoch, or has left it in good order and has not ended. A process that was
  // released is no member any more.
  bool is_member(int64_t process) const { return is_member(processes_.at(process)); }
  // Whether this member has left the epoch in good order.
  bool is_ready(int64_t process) const;
  // Whether a process is there to replace another one, and in no epoch yet.
  bool is_newcomer(int64_t process) const;
  // Whether a newcomer is to be started after a pause.
  bool has_delayed() const;
  // The seconds until another process is started in place of this one; 0 where that has been done. Empty: none is.
  std::optional<double> pause_before_replacing(int64_t process) const;
  // Whether members have a reason to leave the epoch.
  bool epoch_is_to_end() const { return failing_ || asked_ || course_ != Course::going_on; }

  // What has happened. A process that says that it is ready has left its epoch, or is set up and in none yet.
  void becomes_ready(int64_t process);
  // Where all members that have not been lost want to leave, the job is to stop, since nobody would go on.
  void asks_to_leave(int64_t process);
  // Somebody of the epoch has failed; it is to end soon where it has not ended already. `by_own_error`: it said so.
  void fails(int64_t process, bool by_own_error = false);
  // It has ended, and been reaped. `in_good_order`: as a rank does at the end of the job. A member that fails by an
  // error of its own before training has begun ends the job.
  void ends(int64_t process, bool in_good_order);
  // The machine that it is or was on has gone or is going, so that nothing can be started in its place.
  void cannot_be_replaced(int64_t process);
  // A member leaves the epoch in good order, and was not asked to: all is done, and it waits for the others to leave.
  void comes_to_the_end();
  // A signal asks for the end of the job, or the members that stay cannot take over from those that leave: nobody comes
  // or goes any more, but for those who alone can read the memory that is kept on a machine.
  void stop();
  // After a second signal no process is started at all.
  void stop_at_once();
  // What no other rank can go on from.
  void fail_job();
  // From now on members can be started anew.
  void has_begun() { has_begun_ = true; }
  // Training has come farther than ever before.
  void advances() { restarts_left_ = restarts_; }
  // The members' steps take up to `step_seconds`. Of `seconds` at most half a second counts: if the launcher was
  // stopped for longer, then so were the others.
  void pass(double seconds, double step_seconds);

  // What there is to do since the last call, in this order.
  std::vector<Act> take_acts() { return std::exchange(acts_, {}); }

 private:
  enum class State {
    delayed,   // a newcomer that is started after a pause
    starting,  // a newcomer that is setting itself up
    waiting,   // a newcomer that is ready
    at_work,   // a member
    ready,     // a member that has left the epoch
    released,  // has been told to go
    ended,
  };
  struct Process {
    State state = State::starting;
    bool leaving = false;
    bool failing = false;
    bool by_own_error = false;  // failing, as it said itself
    bool killed = false;
    bool replaceable = true;
    bool replaced = false;   // another one has been started for it
    bool is_needed = false;  // it was started because nobody else is left on its machine
    bool hangs = false;      // it was killed because it did not set itself up in time
    int64_t machine = 0;
    int64_t replaces = -1;
    int64_t early_ends = 0;  // of the newcomers in a row that it is started after
    double pause = 0;        // what is left of it
    double seconds = 0;      // for which others have waited for it to set itself up
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
  std::vector<int64_t> lost_, lost_before_;  // in this epoch; in the one before
  std::map<int64_t, Process> processes_;
  int64_t next_number_;
  Course course_ = Course::going_on;
  bool nobody_is_left_ = false;  // who could begin the run
  bool failing_ = false;         // somebody has failed in this epoch
  bool asked_ = false;           // the members have been asked to leave this epoch
  bool stopping_ = false;
  bool at_once_ = false;
  bool waits_ = false;         // for members to leave, or for all to end
  double waited_seconds_ = 0;  // since then
  std::vector<Act> acts_;
};

}  // namespace copus
