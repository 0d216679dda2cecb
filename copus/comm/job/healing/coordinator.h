// Coordinates a job whose ranks come and go, on one or several machines. It runs in the launcher that decides for all.
// It ends failed ranks, regroups the others without them, and has replacements started. composition.h decides which
// actions to take, and machine_processes.h carries them out on each machine.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "copus/comm/job/healing/composition.h"
#include "copus/comm/job/healing/epoch_watch.h"
#include "copus/comm/job/healing/machine_processes.h"
#include "copus/comm/job/healing/remote_machine.h"

namespace copus {

class Coordinator {
 public:
  // Machine 0 is this process' machine. `others` are machines 1, 2, ..., whose launchers have arrived.
  Coordinator(int64_t ranks_per_machine, const Healing& healing, MachineProcesses& own,
              std::vector<std::unique_ptr<RemoteMachine>>& others);

  // Returns the job's exit code when all processes have ended. With `may_begin_again`, returns nothing if all ranks
  // ended before training began and none failed by an error of its own; another coordinator can then start the job
  // again. Throws UserError if the first process cannot be started.
  std::optional<int> run(bool may_begin_again);

 private:
  // A process that was started.
  struct Member {
    int64_t machine = 0;
    int64_t local_rank = 0;
    int64_t pid = 0;
    ProcessEnd end;
    std::string held_back;
    FailureReport report;  // why it was lost
    std::string killed_because;
    bool is_stopped = false;
    double stopped_seconds = 0;  // how long a newcomer has been stopped
  };

  bool has_several_machines() const { return !others_.empty(); }
  RemoteMachine* remote(int64_t machine) { return machine == 0 ? nullptr : others_.at(machine - 1).get(); }

  void give(int64_t machine, const Order& order);
  void give_all(const Order& order);
  void tell(int64_t number, FromLauncher::Kind kind);
  void tell_members(FromLauncher::Kind kind);

  void begin_watch();
  void start_members();
  void start_newcomer(int64_t number, int64_t replaces);
  bool all_ended() const;
  void wait_for_news() const;
  void take_signals();
  std::vector<std::pair<int64_t, News>> hear(double seconds);

  // Handles news from a machine.
  void handle(int64_t machine, const News& news);
  void handle_one(int64_t machine, const Arrived& news);
  void handle_one(int64_t machine, const Started& news);
  void handle_one(int64_t machine, const NotStarted& news);
  void handle_one(int64_t machine, const Said& news);
  void handle_one(int64_t machine, const Ended& news);
  void handle_one(int64_t machine, const Stopped& news);
  void handle_one(int64_t machine, const Leaves& news);

  void fail(int64_t rank, const std::string& cause);
  void look_at_health(double seconds);
  void end_stopped_members();
  void end_stopped_newcomers(double seconds);
  void look_at_failure();
  void look_at_machines();
  void fail_job(const FailureReport& report);
  void lose_machine(RemoteMachine& machine, const std::string& cause);
  void end_member(int64_t number, const std::optional<std::string>& cause, bool by_us);
  void end_newcomer(int64_t number, const std::string& cause);

  void act();
  void act(const Act& act);
  void kill(int64_t number, const std::string& because);
  void begin_epoch();
  void end_job();
  int conclude();

  const std::chrono::steady_clock::time_point started_ = std::chrono::steady_clock::now();
  const int64_t ranks_per_machine_;
  const int64_t size_;  // initially
  MachineProcesses& own_;
  std::vector<std::unique_ptr<RemoteMachine>>& others_;
  Composition composition_;
  std::unique_ptr<EpochWatch> watch_;
  int segment_ = -1;                   // of the epoch, on one machine
  bool failure_is_known_ = false;      // whether the composition has been told of the epoch's failure
  std::map<int64_t, Member> members_;  // by number, including those that have ended
  std::string note_;                   // for newcomers (Epoch)
  std::set<int64_t> left_;             // machines that were told to leave
  std::optional<FailureReport> end_;   // why the job has failed
  std::optional<std::chrono::steady_clock::time_point> told_to_end_;  // time of the first signal that ends the job
};

}  // namespace copus
