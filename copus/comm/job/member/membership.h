// A rank's side of a job whose ranks come and go (launch_healing_ranks, launch_healing_machine). The launcher gives
// each process a number, which is initially its rank, and reuses numbers only if the whole job is restarted. An epoch
// is a period with a fixed set of member processes. A process' rank in an epoch is its position among the members,
// sorted by number. When a rank fails, the launcher ends its process, and the waits of all other ranks throw
// RankFailure. These ranks then give up the epoch's world and join the next epoch.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "copus/comm/job/meeting/meeting_place.h"
#include "copus/comm/job/member/control_socket.h"
#include "copus/comm/job/member/epoch.h"
#include "copus/comm/job/start/launcher.h"
#include "copus/comm/world.h"

namespace copus {

// Used by the rank's main thread.
class Membership {
 public:
  // Makes the membership of a rank that one of these launchers has started (environment.control), and takes over the
  // inherited descriptors. `wait_seconds` limits how long this rank waits for other ranks and for the launcher.
  // `open_meeting_place` opens the place where ranks on several machines meet in each epoch; it is not needed if all
  // ranks are on one machine.
  Membership(const RankEnvironment& environment, double wait_seconds, OpenMeetingPlace open_meeting_place = {});
  ~Membership();
  Membership(const Membership&) = delete;
  Membership& operator=(const Membership&) = delete;

  // Joins the next epoch (in the first call, the first one) and returns its world. Returns null if this process should
  // end, because it asked to leave or the job is done. Blocks until all other members have left the previous epoch.
  // Throws RankFailure if the launcher does not answer within `wait_seconds` or has ended the job.
  //
  // The caller must destroy the previous epoch's world before this call. If that world is destroyed while an exception
  // other than RankFailure unwinds the stack, this rank counts as failed.
  //
  // If ranks on several machines cannot meet because one of them has failed, all operations of the returned world throw
  // RankFailure.
  //
  // After a failure, this process is not ended by its world's watchdog. Instead the launcher ends it if it does not
  // call join_next() within 10 s, or within two steps if that is longer.
  std::unique_ptr<World> join_next();

  // The epoch that was joined last.
  const Epoch& epoch() const { return epoch_; }
  int64_t process() const { return process_; }
  // Whether this process was started after the first epoch had begun.
  bool is_newcomer() const { return is_newcomer_; }

  // Returns whether the launcher asks all members to leave this epoch, because a new process waits to join or a member
  // wants to leave. Rank 0 calls it between two steps. Does not block.
  bool regroup_wanted();
  // Returns whether the job should stop, because the launcher received a signal, all members want to leave, or the
  // launcher is silent. A signal to this rank's own process does not count: it concerns only this rank. Call this
  // between two steps. Does not block.
  bool stop_wanted();
  // For a rank that the current layout does not use. Waits, in the world of this epoch, until the launcher asks to end
  // the epoch, the job is done, or a rank has failed. Calls ask_to_leave() when `wants_to_leave` returns true.
  void wait_as_spare(World& world, const std::function<bool()>& wants_to_leave);
  // Asks to leave. In the next epoch this process is one of the parting members; after that epoch join_next() returns
  // null. The launcher then neither treats the end of this process as a failure nor replaces the process. The launcher
  // ignores the request once it has forwarded a signal that ends the job.
  void ask_to_leave();
  // Asks the launcher to stop the job, because the remaining members cannot take over the state of leaving members.
  // After this no process joins or leaves.
  void ask_to_stop();

  // The arenas that this machine's launcher keeps, including those of ended members. As of the epoch joined last.
  const std::vector<KeptArena>& kept_arenas() const { return kept_; }
  // Gives this process' arena to the launcher, in place of an earlier one. The arena then outlives this process.
  void keep(const StateArena& arena);
  // Tells the launcher that every member of the epoch now has its training state. The launcher then drops the arenas of
  // ended processes that are not members of the epoch.
  void settled();
  // Sets the note for an epoch whose members are all new (Epoch::note): at most a few thousand bytes, in place of an
  // earlier note. From the first note on, the launcher starts new processes on a machine whose members have all ended.
  void leave_note(const std::string& note);
  // Tells the launcher that training has passed the furthest step reached so far.
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
