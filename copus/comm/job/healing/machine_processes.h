// Manages the ranks' processes on a launcher's own machine. It starts, kills and reaps the processes and exchanges
// messages with them, following orders. coordinator.h decides what to do.
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
  // `arguments`: of this program, which each process runs. From now on this process's signals are read here.
  MachineProcesses(MachineOfJob machine, const std::vector<std::string>& arguments);

  // Returns the news that the order causes immediately.
  std::vector<News> carry_out(const Order& order);
  // Returns the new events: first the ranks' messages about their worlds, then ended processes, then the ranks'
  // requests, which may be due to an end that is only noticed now. Sends a sign of life to the ranks.
  std::vector<News> look();

  // The system's view of this machine's processes, for signals and the end of the job.
  RankProcesses& system() { return processes_; }
  const RankProcesses& system() const { return processes_; }
  // Returns when there may be news, or something from `others`, or it is time for the next check.
  void wait_for_news(std::vector<int> others) const;

 private:
  struct Member {
    RankProcess* process = nullptr;
    Descriptor control;
    Descriptor lifeline;
    Descriptor arena;  // memory to keep at its request, until it is no longer needed
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
  // Sorts a rank's messages into news and wishes.
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
  // Repeats the last failure, because a rank that is delayed may have no room for a single message.
  FromLifeline sign_;
  RankProcesses processes_;
  std::map<int64_t, Member> members_;  // by number, including those that have ended
  std::vector<int64_t> epoch_;         // the members of the epoch, unless it is the first
};

// "rank 3: ", the prefix of what a rank writes to stderr. Rank 0 has none where the user's terminal is.
std::string prefix_of_rank(int64_t rank, int64_t machine);

}  // namespace copus
