// One group of a world over NCCL: host memory goes to the host world's group, device memory to NCCL.
#pragma once

#include "copus/comm/communicator.h"
#include "copus/comm/gpu/nccl_links.h"

namespace copus {

class NcclCommunicator final : public WrappedCommunicator {
 public:
  // Refers to both for its whole life.
  NcclCommunicator(Communicator& host, NcclLinks& links)
      : WrappedCommunicator(host), links_(links), collectives_(NcclUse::collectives_of(ranks())) {}

 private:
  Work do_start(const Operation& operation) override;
  void do_run(const Operation& operation) override;

  // InternalError where messages of one exchange lie in both kinds of memory. They lie in one on all members.
  bool is_on_device(const Operation& operation) const;
  Work start_on_device(const Operation& operation);
  // These make the calls that an operation takes of NCCL, as one.
  NcclResult issue(const Operation& operation, NcclComm* comm, void* stream) const;
  NcclResult issue_reduce_scatter(const Operation& operation, NcclComm* comm, void* stream) const;
  NcclResult issue_all_gather(const Operation& operation, NcclComm* comm, void* stream) const;
  NcclResult issue_exchange(const Operation& operation, NcclComm* comm, void* stream) const;

  NcclLinks& links_;
  const NcclUse collectives_;
};

}  // namespace copus
