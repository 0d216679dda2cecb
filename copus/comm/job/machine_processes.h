// The hands of a launcher: the ranks' processes on its own machine, which it starts, kills, reaps, and talks with as it
// is ordered. What to do is decided elsewhere (coordinator.h).
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "copus/comm/job/launcher.h"
#include "copus/comm/job/machine_messages.h"
#include "copus/comm/job/rank_process.h"

namespace copus {

class MachineProcesses {
 public:
  // `arguments`: of this program, which is what each process runs. From now on this process takes signals here.
  MachineProcesses(MachineOfJob machine, const std::vector<std::string>& arguments);

  // Returns the news that there are at once.
  std::vector<News> carry_out(const Order& order);
  // What has happened: first what ranks say of their worlds, then who has ended, then what ranks want, since they may
  // want that for an end which is only seen now. Shows the ranks that this launcher is there.
  std::vector<News> look();

  // Those of this machine as they are known to the system, for signals and the end of the job.
  RankProcesses& system() { return processes_; }
  const RankProcesses& system() const { return processes_; }
  // Returns when there may be news, or something from `others`, or it is time to look again.
  void wait_for_news(std::vector<int> others) const;

 private:
  struct Member {
    RankProcess* process = nullptr;
    Descriptor control;
    Descriptor lifeline;
    Descriptor arena;  // what it wants to be kept, until what lies there is of no more use
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
  // Sorts what a rank has said.
  void listen_to(int64_t number, Member& member, std::vector<News>& news, std::vector<News>& wishes);
  std::vector<KeptArena> kept_arenas() const;
  void drop_arenas_before_epoch();
  void show_signs();
  void show_sign() const;
  void look_for_stopped(std::vector<News>& news);

  const MachineOfJob machine_;
  int64_t beginnings_ = 0;  // of the job
  std::chrono::steady_clock::time_point job_started_ = std::chrono::steady_clock::now();
  std::chrono::steady_clock::time_point shown_{};  // the last sign of life
  // It tells of the last failure again and again, since a rank that is held up may have no room for what it is told
  // once.
  FromLifeline sign_;
  RankProcesses processes_;
  std::map<int64_t, Member> members_;  // by number, with those that have ended
  std::vector<int64_t> epoch_;         // the members of the epoch, where it is not the first
};

// "rank 3: ", before what a rank writes to stderr. Rank 0 speaks for itself where the user's terminal is.
std::string prefix_of_rank(int64_t rank, int64_t machine);

}  // namespace copus
