// One rank's communicators of NCCL: opened and closed together with the other ranks', given work on streams of their
// own, watched while it is under way, and aborted when the job has failed.
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
#include <thread>
#include <vector>

#include "copus/comm/communicator.h"
#include "copus/comm/gpu/device_runtime.h"
#include "copus/comm/gpu/nccl_interface.h"
#include "copus/comm/gpu/nccl_plan.h"
#include "copus/comm/health.h"
#include "copus/comm/world.h"

namespace copus {

// Used by the rank's main thread. Beside it a thread watches: an operation that is not done in time, an error that NCCL
// has noticed on its own, or a failure that somebody else has reported ends the job, and all communicators are aborted,
// so that no stream waits any more.
class NcclLinks {
 public:
  // Every rank makes its own at the same time. `host` outlives it.
  NcclLinks(NcclInterface nccl, World& host, std::shared_ptr<DeviceRuntime> runtime, double wait_seconds, int64_t kept);
  // Waits for what is under way and closes all, in the same order on every rank; aborts where that is no use: in a job
  // that has failed, and when an exception is what ends this rank.
  ~NcclLinks();
  NcclLinks(const NcclLinks&) = delete;
  NcclLinks& operator=(const NcclLinks&) = delete;

  // As World::prepare.
  void prepare(const std::vector<GroupUse>& groups);

  // Throws InternalError where the use was not prepared; before there is anything to wait for.
  void check_prepared(const NcclUse& use) const;

  // Gives NCCL an operation on the communicator of `use`, after what the current stream holds. `what`, for messages:
  // "all_reduce". `issue` makes one call of NCCL's, or several in one group, and returns the result.
  Work start(const NcclUse& use, const char* what, const std::function<NcclResult(NcclComm*, void* stream)>& issue);

  const NcclInterface& nccl() const { return nccl_; }
  DeviceRuntime& runtime() const { return *runtime_; }

  // Of the device's memory, in all.
  int64_t bytes() const { return bytes_; }

 private:
  using Time = std::chrono::steady_clock::time_point;
  class Operation;

  struct Link {
    NcclComm* comm;
    DeviceRuntime::Stream stream;
    std::deque<std::shared_ptr<Operation>> operations;  // under way, oldest first
  };
  using Links = std::map<NcclUse, Link>;

  // Main thread.
  void connect();
  void agree_on(const NcclPlan::Change& change);
  void open(const std::vector<NcclUse>& split);
  void close(Links::iterator at);
  void warm_up(const NcclUse& use, void* memory);
  NcclResult call(const std::function<NcclResult()>& function);
  // Waits until what has begun with this result is done. Throws where it ends otherwise.
  void finish(NcclComm* comm, NcclResult result, const char* what, const NcclUse& use);
  template <class IsDone>
  void wait_until(const IsDone& is_done);
  bool is_idle();
  void check() const;

  // Any thread.
  void end_job(const FailureReport& report, bool is_echo);
  void abort();
  FailureReport late(const char* what, const NcclUse& use) const;

  // The watching thread.
  void watch();
  bool look();
  struct Pending {
    std::shared_ptr<Operation> operation;
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
  std::vector<DeviceRuntime::Stream> free_streams_;

  // Held for every call of NCCL's and every change of what it protects. A call that waits for other ranks inside holds
  // it for long; then abort(), which is what ends such a call, does not wait for it.
  std::mutex calls_;
  std::atomic<bool> aborted_ = false;
  NcclComm* parent_ = nullptr;  // of all ranks: only ever split
  NcclComm* made_ = nullptr;    // where a split under way puts its result
  Links links_;

  // For the operations of links_ and what is behind, and for every change of links_.
  std::mutex operations_;
  std::condition_variable stopping_;
  bool stop_ = false;
  std::optional<WaitingForOthers> waiting_;  // the watching thread's
  std::thread watcher_;
};

}  // namespace copus
