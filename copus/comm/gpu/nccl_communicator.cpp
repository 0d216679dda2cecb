#include "copus/comm/gpu/nccl_communicator.h"

#include <algorithm>
#include <cstddef>
#include <numeric>

#include "copus/base/error.h"

namespace copus {

namespace {

// Calls that NCCL takes as one operation. After one that fails the rest is left out.
class Group {
 public:
  explicit Group(const NcclInterface& nccl) : nccl_(nccl), result_(nccl.group_start()) {}

  template <class Call>
  void add(const Call& call) {
    if (result_ == NcclResult::success || result_ == NcclResult::in_progress) result_ = call();
  }

  NcclResult end() {
    const NcclResult ended = nccl_.group_end();
    return result_ == NcclResult::success || result_ == NcclResult::in_progress ? ended : result_;
  }

 private:
  const NcclInterface& nccl_;
  NcclResult result_;
};

bool are_equal(std::span<const int64_t> counts) {
  return std::all_of(counts.begin(), counts.end(), [&](int64_t count) { return count == counts.front(); });
}

int64_t sum_of(std::span<const int64_t> counts) { return std::accumulate(counts.begin(), counts.end(), int64_t{0}); }

}  // namespace

NcclCommunicator::NcclCommunicator(Communicator& host, NcclLinks& links)
    : Communicator(host.ranks(), host.rank()),
      host_(host),
      links_(links),
      collectives_(NcclUse::collectives_of(host.ranks())) {}

Work NcclCommunicator::start(const char* what, const std::function<NcclResult(NcclComm*, void* stream)>& issue) {
  return links_.start(collectives_, what, issue);
}

NcclUse NcclCommunicator::messages(int64_t from, int64_t to) const {
  COPUS_CHECK(std::min(from, to) >= 0 && std::max(from, to) < size() && from != to, "a message from member ", from,
              " to member ", to, " of ", size());
  return NcclUse::messages_of(ranks(), ranks()[static_cast<size_t>(from)], ranks()[static_cast<size_t>(to)]);
}

// In a group of one.
void NcclCommunicator::copy_own(void* output, const void* input, int64_t count, DataType type) {
  DeviceRuntime& runtime = links_.runtime();
  if (output != input) runtime.copy(output, input, count * size_of(type), runtime.current_stream());
}

Work NcclCommunicator::start_all_reduce(void* data, int64_t count, DataType type, Reduction reduction) {
  if (!is_on_device(data)) return host_.start_all_reduce(data, count, type, reduction);
  if (size() == 1 || count == 0) return {};
  return start("all_reduce", [=, this](NcclComm* comm, void* stream) {
    return links_.nccl().all_reduce(data, data, static_cast<size_t>(count), nccl_type(type), nccl_reduction(reduction),
                                    comm, stream);
  });
}

// NCCL's own takes equal parts alone. Others are reduced to one member after another, in one operation.
Work NcclCommunicator::start_reduce_scatter(void* input, void* output, std::span<const int64_t> counts, DataType type,
                                            Reduction reduction) {
  if (!is_on_device(input)) return host_.start_reduce_scatter(input, output, counts, type, reduction);
  COPUS_CHECK(static_cast<int64_t>(counts.size()) == size(), counts.size(), " counts for ", size(), " members");
  if (size() == 1) {
    copy_own(output, input, counts.front(), type);
    return {};
  }
  if (sum_of(counts) == 0) return {};
  return start("reduce_scatter", [=, this](NcclComm* comm, void* stream) {
    const NcclInterface& nccl = links_.nccl();
    if (are_equal(counts)) {
      return nccl.reduce_scatter(input, output, static_cast<size_t>(counts.front()), nccl_type(type),
                                 nccl_reduction(reduction), comm, stream);
    }
    Group group(nccl);
    const auto* part = static_cast<const std::byte*>(input);
    for (int64_t member = 0; member < size(); ++member) {
      const int64_t count = counts[static_cast<size_t>(member)];
      if (count == 0) continue;
      group.add([&] {
        return nccl.reduce(part, member == rank() ? output : nullptr, static_cast<size_t>(count), nccl_type(type),
                           nccl_reduction(reduction), static_cast<int>(member), comm, stream);
      });
      part += count * size_of(type);
    }
    return group.end();
  });
}

Work NcclCommunicator::start_all_gather(const void* input, void* output, std::span<const int64_t> counts,
                                        DataType type) {
  if (!is_on_device(output)) return host_.start_all_gather(input, output, counts, type);
  COPUS_CHECK(static_cast<int64_t>(counts.size()) == size(), counts.size(), " counts for ", size(), " members");
  if (size() == 1) {
    copy_own(output, input, counts.front(), type);
    return {};
  }
  if (sum_of(counts) == 0) return {};
  return start("all_gather", [=, this](NcclComm* comm, void* stream) {
    const NcclInterface& nccl = links_.nccl();
    if (are_equal(counts)) {
      return nccl.all_gather(input, output, static_cast<size_t>(counts.front()), nccl_type(type), comm, stream);
    }
    Group group(nccl);
    auto* part = static_cast<std::byte*>(output);
    for (int64_t member = 0; member < size(); ++member) {
      const int64_t count = counts[static_cast<size_t>(member)];
      if (count == 0) continue;
      group.add([&] {
        return nccl.broadcast(member == rank() ? input : part, part, static_cast<size_t>(count), nccl_type(type),
                              static_cast<int>(member), comm, stream);
      });
      part += count * size_of(type);
    }
    return group.end();
  });
}

Work NcclCommunicator::start_broadcast(void* data, int64_t count, DataType type, int64_t root) {
  if (!is_on_device(data)) return host_.start_broadcast(data, count, type, root);
  COPUS_CHECK(root >= 0 && root < size(), "member ", root, " of ", size());
  if (size() == 1 || count == 0) return {};
  return start("broadcast", [=, this](NcclComm* comm, void* stream) {
    return links_.nccl().broadcast(data, data, static_cast<size_t>(count), nccl_type(type), static_cast<int>(root),
                                   comm, stream);
  });
}

Work NcclCommunicator::start_send(const void* data, int64_t count, DataType type, int64_t to) {
  if (!is_on_device(data)) return host_.start_send(data, count, type, to);
  const NcclUse use = messages(rank(), to);
  if (count == 0) return {};
  return links_.start(use, "send", [=, this](NcclComm* comm, void* stream) {
    return links_.nccl().send(data, static_cast<size_t>(count), nccl_type(type), 1, comm, stream);
  });
}

void NcclCommunicator::receive(void* data, int64_t count, DataType type, int64_t from) {
  if (!is_on_device(data)) return host_.receive(data, count, type, from);
  const NcclUse use = messages(from, rank());
  if (count == 0) return;
  const auto issue = [=, this](NcclComm* comm, void* stream) {
    return links_.nccl().recv(data, static_cast<size_t>(count), nccl_type(type), 0, comm, stream);
  };
  links_.start(use, "receive", issue).wait();
}

// Members without a message have no part in it: NCCL connects those that have.
void NcclCommunicator::exchange(std::span<const Message> outgoing, std::span<const Message> incoming) {
  const auto is_device_message = [&](const Message& message) { return is_on_device(message.data); };
  const auto on_device = std::count_if(outgoing.begin(), outgoing.end(), is_device_message) +
                         std::count_if(incoming.begin(), incoming.end(), is_device_message);
  if (on_device == 0) return host_.exchange(outgoing, incoming);
  COPUS_CHECK(static_cast<size_t>(on_device) == outgoing.size() + incoming.size(),
              "an exchange of device and host memory at once");
  for (const std::span<const Message>& messages_of_one_kind : {outgoing, incoming}) {
    for (const Message& message : messages_of_one_kind) {
      COPUS_CHECK(message.member >= 0 && message.member < size() && message.member != rank(),
                  "a message between member ", rank(), " and ", message.member, " of ", size());
    }
  }
  const auto issue = [&](NcclComm* comm, void* stream) {
    const NcclInterface& nccl = links_.nccl();
    Group group(nccl);
    for (const Message& message : outgoing) {
      if (message.bytes == 0) continue;
      group.add([&] {
        return nccl.send(message.data, static_cast<size_t>(message.bytes), NcclType::uint8,
                         static_cast<int>(message.member), comm, stream);
      });
    }
    for (const Message& message : incoming) {
      if (message.bytes == 0) continue;
      group.add([&] {
        return nccl.recv(message.data, static_cast<size_t>(message.bytes), NcclType::uint8,
                         static_cast<int>(message.member), comm, stream);
      });
    }
    return group.end();
  };
  start("exchange", issue).wait();
}

void NcclCommunicator::all_reduce(void* data, int64_t count, DataType type, Reduction reduction) {
  if (!is_on_device(data)) return host_.all_reduce(data, count, type, reduction);
  start_all_reduce(data, count, type, reduction).wait();
}

void NcclCommunicator::reduce_scatter(void* input, void* output, std::span<const int64_t> counts, DataType type) {
  if (!is_on_device(input)) return host_.reduce_scatter(input, output, counts, type);
  start_reduce_scatter(input, output, counts, type, Reduction::sum).wait();
}

void NcclCommunicator::all_gather(const void* input, void* output, std::span<const int64_t> counts, DataType type) {
  if (!is_on_device(output)) return host_.all_gather(input, output, counts, type);
  start_all_gather(input, output, counts, type).wait();
}

void NcclCommunicator::broadcast(void* data, int64_t count, DataType type, int64_t root) {
  if (!is_on_device(data)) return host_.broadcast(data, count, type, root);
  start_broadcast(data, count, type, root).wait();
}

void NcclCommunicator::send(const void* data, int64_t count, DataType type, int64_t to) {
  if (!is_on_device(data)) return host_.send(data, count, type, to);
  start_send(data, count, type, to).wait();
}

void NcclCommunicator::barrier() { host_.barrier(); }

}  // namespace copus
