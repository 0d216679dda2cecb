#include "copus/comm/gpu/nccl_world.h"

#include <algorithm>
#include <cstddef>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "copus/base/error.h"
#include "copus/comm/gpu/gpu_environment.h"
#include "copus/comm/gpu/nccl_links.h"

namespace copus {

namespace {

constexpr int oldest_version = 21800;  // the first with ncclCommSplit

int version_of(const NcclInterface& nccl) {
  int version = 0;
  const NcclResult result = nccl.get_version(&version);
  COPUS_CHECK(result == NcclResult::success, "NCCL does not tell its version: ", nccl.get_error_string(result));
  return version;
}

// "GPUs by NCCL 2.28.9 (NCCL_NVLS_ENABLE=0)"
std::string describe(const NcclInterface& nccl) {
  const int version = version_of(nccl);
  const std::string settings = nccl_settings();
  return concat("GPUs by NCCL ", version / 10000, ".", version / 100 % 100, ".", version % 100,
                settings.empty() ? "" : concat(" (", settings, ")"));
}

void check_version(const NcclInterface& nccl) {
  const int version = version_of(nccl);
  if (version >= oldest_version) return;
  throw UserError(concat("this is NCCL (or RCCL) of version code ", version, ", and ", oldest_version,
                         " (2.18) or later is needed: install a newer one"));
}

bool are_equal(const std::vector<int64_t>& counts) {
  return std::all_of(counts.begin(), counts.end(), [&](int64_t count) { return count == counts.front(); });
}

// Calls call(member, offset, count) for each part that is not empty, with the offset in bytes. Used for unequal parts,
// because NCCL's own reduce_scatter and all_gather require parts of equal size.
template <class Call>
NcclResult issue_part_by_part(const NcclInterface& nccl, const Operation& operation, const Call& call) {
  NcclGroup group(nccl);
  int64_t offset = 0;
  for (int member = 0; member < std::ssize(operation.counts); ++member) {
    const int64_t count = operation.counts[member];
    if (count == 0) continue;
    group.add([&] { return call(member, offset, count); });
    offset += count * size_of(operation.type);
  }
  return group.end();
}

// One group: host memory goes to the host world's group, device memory to NCCL.
class NcclCommunicator final : public WrappedCommunicator {
 public:
  NcclCommunicator(Communicator& host, NcclLinks& links)
      : WrappedCommunicator(host),
        links_(links),
        collectives_(NcclUse::collectives_of(ranks())),
        exchanges_(NcclUse::exchanges_of(ranks())) {}

 private:
  // A send that is held until the receive after it starts, so that both run as one operation.
  class HeldWork final : public Work::State {
   public:
    void begin(Work work) { work_ = std::move(work); }
    void wait() override {
      COPUS_CHECK(work_, "a send waits for the receive that it goes with");
      work_->wait();
    }
    bool done() override { return work_ && work_->done(); }

   private:
    std::optional<Work> work_;
  };
  struct Held {
    Operation operation;
    std::shared_ptr<HeldWork> work;
  };

  Work do_start(const Operation& operation) override {
    return is_on_device(operation) ? start_on_device(operation) : group().start(operation);
  }

  void do_run(const Operation& operation) override {
    if (!is_on_device(operation)) return group().run(operation);
    start_on_device(operation).wait();
  }

  // Returns whether the operation is on device memory. All members must use the same kind of memory. Throws
  // InternalError if the messages of one exchange are in both kinds.
  bool is_on_device(const Operation& operation) const {
    const DeviceRuntime& runtime = links_.runtime();
    if (operation.kind == OperationKind::barrier) return false;
    if (operation.kind != OperationKind::exchange) return runtime.is_device_memory(operation.whole());
    int64_t on_device = 0;
    for (const auto* messages : {&operation.outgoing, &operation.incoming}) {
      on_device += std::count_if(messages->begin(), messages->end(),
                                 [&](const Message& message) { return runtime.is_device_memory(message.data); });
    }
    COPUS_CHECK(on_device == 0 || on_device == std::ssize(operation.outgoing) + std::ssize(operation.incoming),
                "an exchange of device and host memory at once");
    return on_device > 0;
  }

  Work start_on_device(const Operation& operation) {
    if (operation.kind != OperationKind::exchange && operation.count == 0) return {};
    if (size() == 1) {  // the result is the input
      DeviceRuntime& runtime = links_.runtime();
      if (operation.output != operation.input) {
        runtime.copy(operation.output, operation.input, operation.bytes(), runtime.current_stream());
      }
      return {};
    }
    const NcclUse use = use_of(operation);
    if (operation.kind == OperationKind::receive && held_ && use_of(held_->operation) == use) {
      const Held held = *std::exchange(held_, std::nullopt);
      const Work both = links_.start(use, "send and receive", [&](NcclComm* comm, void* stream) {
        NcclGroup group(links_.nccl());
        group.add([&] { return issue(held.operation, comm, stream); });
        group.add([&] { return issue(operation, comm, stream); });
        return group.end();
      });
      held.work->begin(both);
      return both;
    }
    start_held();
    if (operation.kind == OperationKind::send && operation.route.with_next_receive) {
      links_.check_prepared(use);
      held_ = Held{operation, std::make_shared<HeldWork>()};
      return Work(held_->work);
    }
    return start(use, operation);
  }

  Work start(const NcclUse& use, const Operation& operation) {
    const auto call = [&](NcclComm* comm, void* stream) { return issue(operation, comm, stream); };
    return links_.start(use, to_string(operation.kind), call);
  }

  void start_held() {
    if (!held_) return;
    const Held held = *std::exchange(held_, std::nullopt);
    held.work->begin(start(use_of(held.operation), held.operation));
  }

  NcclUse use_of(const Operation& operation) const {
    if (operation.kind == OperationKind::exchange) return exchanges_;
    if (!operation.is_message()) return collectives_;
    const int64_t link = operation.route.link;
    return NcclUse::messages_of(ranks(), link >= 0 ? link : link_between(rank(), operation.peer, size()));
  }

  // The other member's rank on the communicator of a link.
  int other_on(const Operation& operation) const {
    const NcclUse use = use_of(operation);
    return use.members.front() == ranks()[rank()] ? 1 : 0;
  }

  // Makes the NCCL call for an operation, or several that NCCL joins into one.
  NcclResult issue(const Operation& operation, NcclComm* comm, void* stream) const {
    const NcclInterface& nccl = links_.nccl();
    const void* const input = operation.input;
    void* const output = operation.output;
    const int64_t count = operation.count;
    const NcclType type = nccl_type(operation.type);
    switch (operation.kind) {
      case OperationKind::all_reduce:
        return nccl.all_reduce(input, output, count, type, nccl_reduction(operation.reduction), comm, stream);
      case OperationKind::reduce_scatter:
        return issue_reduce_scatter(operation, comm, stream);
      case OperationKind::all_gather:
        return issue_all_gather(operation, comm, stream);
      case OperationKind::broadcast:
        return nccl.broadcast(input, output, count, type, static_cast<int>(operation.peer), comm, stream);
      case OperationKind::send:
        return nccl.send(input, count, type, other_on(operation), comm, stream);
      case OperationKind::receive:
        return nccl.recv(output, count, type, other_on(operation), comm, stream);
      case OperationKind::exchange:
        return issue_exchange(operation, comm, stream);
      case OperationKind::barrier:
        break;
    }
    COPUS_CHECK(false, "a barrier of device memory");
  }

  NcclResult issue_reduce_scatter(const Operation& operation, NcclComm* comm, void* stream) const {
    const NcclInterface& nccl = links_.nccl();
    const NcclType type = nccl_type(operation.type);
    const NcclReduction reduction = nccl_reduction(operation.reduction);
    if (are_equal(operation.counts)) {
      return nccl.reduce_scatter(operation.input, operation.output, operation.counts.front(), type, reduction, comm,
                                 stream);
    }
    return issue_part_by_part(nccl, operation, [&](int member, int64_t offset, int64_t count) {
      return nccl.reduce(static_cast<const std::byte*>(operation.input) + offset,
                         member == rank() ? operation.output : nullptr, count, type, reduction, member, comm, stream);
    });
  }

  NcclResult issue_all_gather(const Operation& operation, NcclComm* comm, void* stream) const {
    const NcclInterface& nccl = links_.nccl();
    const NcclType type = nccl_type(operation.type);
    if (are_equal(operation.counts)) {
      return nccl.all_gather(operation.input, operation.output, operation.counts.front(), type, comm, stream);
    }
    return issue_part_by_part(nccl, operation, [&](int member, int64_t offset, int64_t count) {
      std::byte* const part = static_cast<std::byte*>(operation.output) + offset;
      return nccl.broadcast(member == rank() ? operation.input : part, part, count, type, member, comm, stream);
    });
  }

  // Members without a message take no part, because NCCL connects only members that have one.
  NcclResult issue_exchange(const Operation& operation, NcclComm* comm, void* stream) const {
    const NcclInterface& nccl = links_.nccl();
    NcclGroup group(nccl);
    for (const Message& message : operation.outgoing) {
      if (message.bytes == 0) continue;
      const auto to = static_cast<int>(message.member);
      group.add([&] { return nccl.send(message.data, message.bytes, NcclType::uint8, to, comm, stream); });
    }
    for (const Message& message : operation.incoming) {
      if (message.bytes == 0) continue;
      const auto from = static_cast<int>(message.member);
      group.add([&] { return nccl.recv(message.data, message.bytes, NcclType::uint8, from, comm, stream); });
    }
    return group.end();
  }

  NcclLinks& links_;
  const NcclUse collectives_, exchanges_;
  std::optional<Held> held_;
};

class NcclWorld final : public WrappedWorld {
 public:
  NcclWorld(std::unique_ptr<World> host, std::shared_ptr<DeviceRuntime> runtime, double wait_seconds,
            const NcclInterface& nccl, int64_t kept_bytes)
      : WrappedWorld(std::move(host)), links_(nccl, inner(), std::move(runtime), wait_seconds, kept_bytes) {}

  std::string device_connection() const override { return describe(links_.nccl()); }
  int64_t communicator_bytes() const override { return inner().communicator_bytes() + links_.bytes(); }
  CommunicatorCosts communicator_costs() const override { return links_.costs(); }

  std::optional<std::string> prepare(const std::vector<GroupUse>& groups) override {
    if (std::optional<std::string> lack = inner().prepare(groups)) return lack;
    return links_.prepare(groups);
  }

 private:
  std::unique_ptr<Communicator> make_group(const std::vector<int64_t>& ranks, int64_t /*member*/) override {
    return std::make_unique<NcclCommunicator>(inner().group(ranks), links_);
  }

  // Destroyed before the host's world, because the links report failures to it. The groups live longer, but their
  // destructors do not use the links.
  NcclLinks links_;
};

}  // namespace

std::unique_ptr<World> over_nccl(std::unique_ptr<World> host, std::shared_ptr<DeviceRuntime> runtime,
                                 double wait_seconds) {
  return over_nccl(std::move(host), std::move(runtime), wait_seconds, load_nccl());
}

std::unique_ptr<World> over_nccl(std::unique_ptr<World> host, std::shared_ptr<DeviceRuntime> runtime,
                                 double wait_seconds, const NcclInterface& nccl, int64_t kept_bytes) {
  check_version(nccl);
  order_nccl_launches(runtime->driver_version());
  return std::make_unique<NcclWorld>(std::move(host), std::move(runtime), wait_seconds, nccl, kept_bytes);
}

}  // namespace copus
