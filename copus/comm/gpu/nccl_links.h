// One rank's communicators of NCCL. They are opened and closed together with those of the other ranks, get work on
// streams of their own, are watched while it is under way, and are aborted when the job has failed.
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

// The rank's main thread uses it. Another thread watches. It ends the job at an operation that is not done in time, and
// at an error that NCCL has noticed on its own. When the job has failed, for whatever reason, it aborts all
// communicators, so that no stream waits any more.
class NcclLinks {
 public:
  // Every rank makes its own at the same time. `host` outlives it.
  NcclLinks(NcclInterface nccl, World& host, std::shared_ptr<DeviceRuntime> runtime, double wait_seconds,
            int64_t kept_bytes);
  // Waits for what is under way and closes all, in the same order on every rank. Aborts instead in a job that has
  // failed, and when an exception is what ends this rank.
  ~NcclLinks();
  NcclLinks(const NcclLinks&) = delete;
  NcclLinks& operator=(const NcclLinks&) = delete;

  // See World::prepare.
  std::optional<std::string> prepare(const std::vector<GroupUse>& groups);

  // Throws InternalError where the use was not prepared.
  void check_prepared(const NcclUse& use) const;

  // Gives NCCL an operation on the communicator of `use`, after what the current stream holds. Messages to the user
  // name it `what`: "all_reduce". `issue` makes one call of NCCL's, or several in one group, and returns the result.
  Work start(const NcclUse& use, const char* what, const std::function<NcclResult(NcclComm*, void* stream)>& issue);

  const NcclInterface& nccl() const { return nccl_; }
  DeviceRuntime& runtime() const { return *runtime_; }

  // The memory of the device that all communicators take.
  int64_t bytes() const { return bytes_; }
  // See World::communicator_costs.
  CommunicatorCosts costs() const;

 private:
  using Time = std::chrono::steady_clock::time_point;
  class Issued;

  struct Link {
    NcclComm* comm;
    DeviceRuntime::Stream stream;
    std::deque<std::shared_ptr<Issued>> operations;  // under way, oldest first
    bool aborted = false;
  };
  using Links = std::map<NcclUse, Link>;

  // Main thread.
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
  // `comm`: the communicator that the call is about, or null.
  NcclResult call(NcclComm* comm, const std::function<NcclResult()>& function);
  // Waits for the success of what has begun with this result. Throws where it ends otherwise.
  void finish(NcclComm* comm, NcclResult result, const char* what, const NcclUse& use);
  template <class IsDone>
  void wait_until(const IsDone& is_done);
  bool is_idle();
  void check() const;

  // Any thread.
  void end_job(const FailureReport& report, bool is_echo);
  // Ends what is under way on all communicators, and frees all but one that the main thread is inside and does not
  // leave.
  void abort();
  bool take_calls(std::unique_lock<std::mutex>& lock) const;
  FailureReport late(const char* what, const NcclUse& use) const;

  // The watching thread.
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
  NcclPlan::Bytes bytes_of_kind_;                                  // alike on all ranks: of the rank with most
  std::map<NcclUse::Kind, std::pair<int64_t, int64_t>> measured_;  // of this rank's: bytes in all, and how many
  std::chrono::duration<double> opening_{};  // time that this rank has spent in splits and in connecting what they made
  int64_t splits_ = 0;
  double split_seconds_ = 0;  // alike on all ranks: of the slowest
  std::vector<DeviceRuntime::Stream> free_streams_;

  // Held for every call of NCCL's and every change of what it protects. A call that waits for other ranks holds it for
  // long. abort() then goes on without it, and leaves out the communicator that the call is about.
  std::mutex calls_;
  std::atomic<NcclComm*> inside_ = nullptr;  // the communicator of the call under way
  std::atomic<bool> aborted_ = false;        // no call begins any more
  std::mutex aborting_;
  NcclComm* parent_ = nullptr;  // of all ranks, for nothing but splits
  bool parent_aborted_ = false;
  NcclComm* made_ = nullptr;  // where a split under way puts its result
  Links links_;

  // Protects the operations of links_ and what follows, and every change of links_.
  std::mutex operations_;
  std::condition_variable stopping_;
  bool stop_ = false;
  std::optional<WaitingForOthers> waiting_;  // the watching thread's
  std::thread watcher_;
};

}  // namespace copus
