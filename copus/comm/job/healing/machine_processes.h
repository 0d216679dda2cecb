// Manages the ranks' processes on a launcher's own machine: starts, kills and reaps them, and exchanges messages with
// them. It follows the orders of coordinator.h.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "copus/comm/job/healing/machine_messages.h"
#include "copus/comm/job/start/launcher.h"
#include "copus/comm/job/start/rank_process.h"

namespace copus {

class MachineProcesses {
 public:
  // `arguments`: the command line of this program, with which each rank is started. From now on this object reads the
  // signals of this process.
  MachineProcesses(MachineOfJob machine, const std::vector<std::string>& arguments);

  // Returns the news that the order causes immediately.
  std::vector<News> carry_out(const Order& order);
  // Returns the new events in this order: (a) the ranks' messages about their worlds, (b) ended processes, (c) the
  // ranks' requests, some of which may be caused by an end that is noticed only now. Also sends a sign of life to the
  // ranks.
  std::vector<News> look();

  // The operating system's view of this machine's processes, for signals and the end of the job.
  RankProcesses& system() { return processes_; }
  const RankProcesses& system() const { return processes_; }
  // Returns when there may be news, when one of the descriptors `others` is readable, or when it is time for the next
  // check.
  void wait_for_news(std::vector<int> others) const;

 private:
  struct Member {
    RankProcess* process = nullptr;
    Descriptor control;
    Descriptor lifeline;
    Descriptor arena;  // memory that the launcher keeps at the process' request until it is no longer needed
    bool is_stopped = false;
  };

  bool is_one_of_several() const { return machine_.num_machines > 1; }
  std::vector<News> carry_out_one(const BeginJob& order);
  std::vector<News> carry_out_one(const StartProcess& order);
  std::vector<News> carry_out_one(const KillProcess& order);
  std::vector<News> carry_out_one(const ContinueProcess& order);
  std::vector<News> carry_out_one(const TellProcess& order);
  std::vector<News> carry_out_one(const BeginEpoch& order);
  std::vector<News> carry_out_one(const TellOfFailure& order);
  std::vector<News> carry_out_one(const PassSignal& order);
  std::vector<News> carry_out_one(const EndJob& order);
  static std::vector<News> carry_out_one(const Conclude& order);
  void signal(int64_t number, int signal) const;
  // Reads a rank's messages into `news` (about its world) and `wishes` (its requests).
  void listen_to(int64_t number, Member& member, std::vector<News>& news, std::vector<News>& wishes);
  std::vector<KeptArena> kept_arenas() const;
  void drop_arenas_before_epoch();
  void show_signs();
  void show_sign() const;
  void look_for_stopped(std::vector<News>& news);

  const MachineOfJob machine_;
  int64_t beginnings_ = 0;  // starts of the job
  std::chrono::steady_clock::time_point job_started_ = std::chrono::steady_clock::now();
  std::chrono::steady_clock::time_point shown_{};  // time of the last sign of life
  // The sign of life. It repeats the last failure, because a single message may find the buffer of a delayed rank full.
  FromLifeline sign_;
  RankProcesses processes_;
  std::map<int64_t, Member> members_;  // by number, including those that have ended
  std::vector<int64_t> epoch_;         // the members of the epoch, unless it is the first
};

// The prefix of what a rank writes to stderr: "rank 3: ". Empty for rank 0 if it writes to the user's terminal.
std::string prefix_of_rank(int64_t rank, int64_t machine);

}  // namespace copus
