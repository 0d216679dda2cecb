#include "copus/comm/gpu/nccl_world.h"

#include <utility>
#include <vector>

#include "copus/base/error.h"
#include "copus/comm/gpu/nccl_communicator.h"
#include "copus/comm/gpu/nccl_links.h"

namespace copus {

namespace {

constexpr int oldest_version = 21800;  // the first with ncclCommSplit

void check_version(const NcclInterface& nccl) {
  int version = 0;
  const NcclResult result = nccl.get_version(&version);
  COPUS_CHECK(result == NcclResult::success, "NCCL does not tell its version: ", nccl.get_error_string(result));
  if (version >= oldest_version) return;
  throw UserError(concat("this is NCCL (or RCCL) of version code ", version, ", and ", oldest_version,
                         " (2.18) or later is needed: install a newer one"));
}

class NcclWorld final : public WrappedWorld {
 public:
  NcclWorld(std::unique_ptr<World> host, std::shared_ptr<DeviceRuntime> runtime, double wait_seconds,
            const NcclInterface& nccl, int64_t kept)
      : WrappedWorld(std::move(host)), links_(nccl, inner(), std::move(runtime), wait_seconds, kept) {}

  int64_t communicator_bytes() const override { return inner().communicator_bytes() + links_.bytes(); }

  void prepare(const std::vector<GroupUse>& groups) override {
    inner().prepare(groups);
    links_.prepare(groups);
  }

 private:
  std::unique_ptr<Communicator> make_group(const std::vector<int64_t>& ranks, int64_t /*member*/) override {
    return std::make_unique<NcclCommunicator>(inner().group(ranks), links_);
  }

  NcclLinks links_;  // ends before the host's world, which it reports to
};

}  // namespace

std::unique_ptr<World> over_nccl(std::unique_ptr<World> host, std::shared_ptr<DeviceRuntime> runtime,
                                 double wait_seconds) {
  return over_nccl(std::move(host), std::move(runtime), wait_seconds, load_nccl());
}

std::unique_ptr<World> over_nccl(std::unique_ptr<World> host, std::shared_ptr<DeviceRuntime> runtime,
                                 double wait_seconds, const NcclInterface& nccl, int64_t kept) {
  check_version(nccl);
  return std::make_unique<NcclWorld>(std::move(host), std::move(runtime), wait_seconds, nccl, kept);
}

}  // namespace copus
