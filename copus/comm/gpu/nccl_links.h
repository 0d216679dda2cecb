// Holds one rank's NCCL communicators. All ranks open and close their communicators together. Each communicator runs
// its operations on its own stream. Operations under way are monitored. When the job has failed, the communicators are
// aborted.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "copus/comm/communicator.h"
#include "copus/comm/gpu/device_runtime.h"
#include "copus/comm/gpu/nccl_interface.h"
#include "copus/comm/gpu/nccl_plan.h"
#include "copus/comm/health.h"
#include "copus/comm/world.h"

namespace copus {

// The rank's main thread uses the communicators; another thread monitors them. The monitoring thread fails the job if
// an operation misses its deadline or NCCL reports an error. When the job has failed for any reason, this thread aborts
// all communicators, so that no stream keeps waiting.
class NcclLinks {
 public:
  // Every rank constructs this object at the same time. `host` must outlive it.
  NcclLinks(NcclInterface nccl, World& host, std::shared_ptr<DeviceRuntime> runtime, double wait_seconds,
            int64_t kept_bytes);
  // Waits for the operations under way and closes all communicators, in the same order on every rank. Aborts instead if
  // the job has failed, or if an exception ends this rank.
  ~NcclLinks();
  NcclLinks(const NcclLinks&) = delete;
  NcclLinks& operator=(const NcclLinks&) = delete;

  // See World::prepare.
  std::optional<std::string> prepare(const std::vector<GroupUse>& groups);

  // Throws InternalError if the use was not prepared.
  void check_prepared(const NcclUse& use) const;

  // Starts an NCCL operation on the communicator of `use`, after the work in the current stream. `what` names the
  // operation in messages to the user: "all_reduce". `issue` makes one NCCL call, or several in one group, and returns
  // the result.
  Work start(const NcclUse& use, const char* what, const std::function<NcclResult(NcclComm*, void* stream)>& issue);

  const NcclInterface& nccl() const { return nccl_; }
  DeviceRuntime& runtime() const { return *runtime_; }

  // Bytes of device memory that all communicators take.
  int64_t bytes() const { return bytes_; }
  // See World::communicator_costs.
  CommunicatorCosts costs() const;

 private:
  using Time = std::chrono::steady_clock::time_point;
  class Issued;

  struct Link {
    NcclComm* comm;
    DeviceRuntime::Stream stream;
    std::deque<std::shared_ptr<Issued>> operations;  // those under way, oldest first
    bool aborted = false;
  };
  using Links = std::map<NcclUse, Link>;

  // Called by the main thread.
  void connect();
  void close_all(const std::vector<NcclUse>& uses);
  void open_all(const NcclPlan::Change& change);
  void agree_on(const NcclPlan::Change& change);
  void open(const std::vector<NcclUse>& split);
  void close(Links::iterator at);
  std::optional<std::string> find_lack(const NcclPlan::Change& change);
  void warm_up(const NcclUse& use, void* memory);
  void warm_up_messages(const NcclUse& use, void* memory);
  void warm_up_collectives(const NcclUse& use, void* memory, int64_t bytes);
  int64_t warm_up_bytes(const NcclPlan::Change& change) const;
  void measure(const NcclUse& use, const std::function<void()>& open);
  void agree_on_measured();
  // `comm`: the communicator that the call uses, or null.
  NcclResult call(NcclComm* comm, const std::function<NcclResult()>& function);
  // Waits until an operation that began with this result succeeds. Throws if it fails.
  void finish(NcclComm* comm, NcclResult result, const char* what, const NcclUse& use);
  template <class IsDone>
  void wait_until(const IsDone& is_done);
  bool is_idle();
  void check() const;

  // Called by any thread.
  void end_job(const FailureReport& report, bool is_echo);
  // Ends the operations under way on all communicators and frees the communicators. Skips a communicator that the main
  // thread is just calling.
  void abort();
  bool take_calls(std::unique_lock<std::mutex>& lock) const;
  FailureReport late(const char* what, const NcclUse& use) const;

  // Called by the monitoring thread.
  void watch();
  bool look();
  struct Pending {
    std::shared_ptr<Issued> operation;
    NcclUse use;
  };
  std::optional<Pending> find_oldest();
  NcclResult find_error();

  const NcclInterface nccl_;
  World& host_;
  const std::shared_ptr<DeviceRuntime> runtime_;
  const std::chrono::duration<double> limit_;
  const int exceptions_before_;
  NcclPlan plan_;
  int64_t bytes_ = 0;
  NcclPlan::Bytes bytes_of_kind_;                                  // the same on all ranks: the maximum over the ranks
  std::map<NcclUse::Kind, std::pair<int64_t, int64_t>> measured_;  // on this rank: total bytes, and number
  std::chrono::duration<double> opening_{};  // this rank's time for splits and for connecting their communicators
  int64_t splits_ = 0;
  double split_seconds_ = 0;  // the same on all ranks: that of the slowest rank
  std::vector<DeviceRuntime::Stream> free_streams_;

  // The mutex of all NCCL calls and of the members below. A call that waits for other ranks holds the mutex for a long
  // time. abort() then proceeds without the mutex, and skips the communicator that the call uses.
  std::mutex calls_;
  std::atomic<NcclComm*> inside_ = nullptr;  // the communicator of the current call
  std::atomic<bool> aborted_ = false;        // no new call begins
  std::mutex aborting_;
  NcclComm* parent_ = nullptr;  // communicator of all ranks, used only for splits
  bool parent_aborted_ = false;
  NcclComm* made_ = nullptr;  // where a running split stores its result
  Links links_;

  // Protects the operations of links_, the members below, and every change of links_.
  std::mutex operations_;
  std::condition_variable stopping_;
  bool stop_ = false;
  std::optional<WaitingForOthers> waiting_;  // of the monitoring thread
  std::thread watcher_;
};

}  // namespace copus
