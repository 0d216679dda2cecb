// A rank's side of a job whose ranks come and go (launch_healing_ranks, launch_healing_machine). The launcher gives
// each process a number, which is initially its rank, and reuses numbers only if the job begins again. An epoch is one
// composition of the job. The epoch's members are processes, sorted by number, and a process' rank is its position
// among them. When a rank fails, the launcher ends the rank's process. The waits of all other ranks throw RankFailure;
// these ranks give up the epoch's world and join the next epoch.
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
  // Makes the membership of a rank that such a launcher has started (environment.control), and takes over the inherited
  // descriptors. `wait_seconds` limits how long this rank waits for other ranks and for the launcher.
  // `open_meeting_place` opens the place where ranks on several machines meet in each epoch; ranks of one machine do
  // not need it.
  Membership(const RankEnvironment& environment, double wait_seconds, OpenMeetingPlace open_meeting_place = {});
  ~Membership();
  Membership(const Membership&) = delete;
  Membership& operator=(const Membership&) = delete;

  // Joins the next epoch, at first the first one, and returns its world. Returns null if this process is to end,
  // because it asked to leave or the job is done. Blocks until all other members have left the previous epoch. Throws
  // RankFailure if the launcher does not answer within `wait_seconds` or has ended the job.
  //
  // The previous epoch's world must be destroyed before. If it is destroyed while an exception other than RankFailure
  // unwinds the stack, this rank has failed.
  //
  // If ranks on several machines cannot meet because one of them has failed, all operations of the returned world throw
  // RankFailure.
  //
  // After a failure the world's watchdog does not end this process. The launcher ends it if the process does not call
  // join_next() within 10 s, or within two steps if that is longer.
  std::unique_ptr<World> join_next();

  // The epoch that was joined last.
  const Epoch& epoch() const { return epoch_; }
  int64_t process() const { return process_; }
  // Whether this process has joined, or is about to join, after the first epoch.
  bool is_newcomer() const { return is_newcomer_; }

  // Returns whether the launcher asks all members to leave this epoch, because a newcomer waits or a member wants to
  // leave. Rank 0 calls it between two steps. Does not block.
  bool regroup_wanted();
  // Returns whether the job is to stop, because the launcher received a signal, all members want to leave, or the
  // launcher is silent. A signal to this rank itself concerns only this rank. To be called between two steps. Does not
  // block.
  bool stop_wanted();
  // Waits as a rank that the layout cannot use, with the world of this epoch. Returns when the epoch is to end: the
  // launcher asks for it, the job is done, or a rank has failed. Asks to leave when `wants_to_leave` returns true.
  void wait_as_spare(World& world, const std::function<bool()>& wants_to_leave);
  // Asks to leave. In the next epoch this process is among the parting members, and after that join_next() returns
  // null. The end of this process is then not a failure, and the process is not replaced. The launcher ignores the
  // request after it has forwarded a signal that ends the job.
  void ask_to_leave();
  // Asks the launcher to stop the job, because the remaining members cannot take over from leaving members. No process
  // joins or leaves any more.
  void ask_to_stop();

  // Arenas on this machine that its launcher keeps, also those of ended members, as of the epoch that was joined last.
  const std::vector<KeptArena>& kept_arenas() const { return kept_; }
  // Gives this process' arena to the launcher in place of an earlier one. The arena outlives this process.
  void keep(const StateArena& arena);
  // Tells the launcher that every member of the epoch has its training state. The launcher then drops the arenas of
  // ended processes that are not members of the epoch.
  void settled();
  // Replaces the note for newcomers (Epoch::note), of at most a few thousand bytes. From then on, if all members of a
  // machine have ended, the launcher starts new processes there.
  void leave_note(const std::string& note);
  // Tells the launcher that training has passed its latest step so far.
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
