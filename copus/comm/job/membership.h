// A rank's side of a job whose ranks come and go (launch_healing_ranks, launch_healing_machine). A process has a number
// that the launcher gives and gives again only where the job begins again; at first it is its rank. An epoch is one
// composition of the job: its members are processes, sorted by number, and a process' rank is its place among them.
// When a rank fails, the launcher ends its process; all waits of the others throw RankFailure, they give up the epoch's
// world, and join the next epoch.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "copus/comm/job/control_socket.h"
#include "copus/comm/job/epoch.h"
#include "copus/comm/job/launcher.h"
#include "copus/comm/job/meeting_place.h"
#include "copus/comm/world.h"

namespace copus {

// Used by the rank's main thread.
class Membership {
 public:
  // Of a rank that such a launcher has started (environment.control). Takes over the descriptors that it inherited.
  // `wait_seconds`: how long this rank waits for others and for the launcher. `open_meeting_place`: where ranks of
  // several machines meet in each epoch; those of one machine need none.
  Membership(const RankEnvironment& environment, double wait_seconds, OpenMeetingPlace open_meeting_place = {});
  ~Membership();
  Membership(const Membership&) = delete;
  Membership& operator=(const Membership&) = delete;

  // Joins the next epoch, at first the first one. The world of the epoch before has been destroyed by then, outside of
  // the unwinding of an exception other than RankFailure, which would count as a failure of this rank. Blocks until all
  // other members have given up theirs. Null where this process is to go: it asked to leave, or the job is done. Throws
  // RankFailure where the launcher does not answer within `wait_seconds`, or has ended the job.
  //
  // Where ranks of several machines cannot meet since one of them has failed, the world is one in which all operations
  // throw RankFailure.
  //
  // After a failure the world's watchdog does not end this process: the launcher does, where it does not get here
  // within 10 s, or two steps if that is longer.
  std::unique_ptr<World> join_next();

  // The epoch that was joined last.
  const Epoch& epoch() const { return epoch_; }
  int64_t process() const { return process_; }
  // Whether this process has joined, or is about to join, after the first epoch.
  bool is_newcomer() const { return is_newcomer_; }

  // For rank 0, between two steps: whether the launcher asks that all leave this epoch, since a newcomer waits or a
  // member wants to leave. Does not block.
  bool regroup_wanted();
  // Between two steps: whether the job is to stop, since the launcher was told so, all members want to leave, or the
  // launcher is heard no more. What this rank itself is told holds for this rank alone. Does not block.
  bool stop_wanted();
  // For a rank that the layout cannot use, with the world of this epoch. Returns when the epoch is to end: the launcher
  // asks for that, the job is done, or a rank has failed. Asks to leave once `wants_to_leave` says so.
  void wait_as_spare(World& world, const std::function<bool()>& wants_to_leave);
  // Asks to leave. The next epoch has this process among those that part, and join_next() gives null after it. Its end
  // is then no failure, and it is not replaced. The launcher ignores it once it has itself passed on a signal that ends
  // the job.
  void ask_to_leave();
  // Asks that the job stops, and nobody comes or goes any more: those that stay cannot take over from those that leave.
  void ask_to_stop();

  // Arenas on this machine that its launcher keeps, of members that have ended too; of the epoch that was joined last.
  const std::vector<KeptArena>& kept_arenas() const { return kept_; }
  // Gives this process' arena to the launcher, in place of an earlier one. It outlives this process.
  void keep(const StateArena& arena);
  // Says that all members of the epoch have their state. The launcher then drops the arenas of ended processes that are
  // not members of the epoch.
  void settled();
  // Replaces the note for newcomers (Epoch::note), of at most a few thousand bytes. From then on the launcher starts
  // new processes where all members of a machine have ended.
  void leave_note(const std::string& note);
  // Says that training has passed the latest step so far.
  void advances();

 private:
  struct Connection;
  std::unique_ptr<World> join_epoch(FromLauncher next);
  std::unique_ptr<World> meet(int64_t rank, std::chrono::steady_clock::time_point job_started);

  const RankEnvironment environment_;
  const OpenMeetingPlace open_meeting_place_;
  const int64_t process_;
  const bool is_newcomer_;
  const double wait_seconds_;
  const std::unique_ptr<Connection> connection_;
  Epoch epoch_;
  std::vector<KeptArena> kept_;
};

}  // namespace copus
