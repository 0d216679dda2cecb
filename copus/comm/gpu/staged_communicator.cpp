#include "copus/comm/gpu/staged_communicator.h"

#include <numeric>
#include <utility>

#include "copus/base/error.h"

namespace copus {

namespace {

int64_t bytes_of(std::span<const int64_t> counts, DataType type) {
  return std::accumulate(counts.begin(), counts.end(), int64_t{0}) * size_of(type);
}

// The parameter of an operation that only reads.
void* readable(const void* data) { return const_cast<void*>(data); }

}  // namespace

// An operation whose buffer the group works on, until its result is on its way up.
class StagedCommunicator::Staged : public Work::State {
 public:
  Staged(StagedCommunicator& communicator, PinnedPool::Buffer buffer, std::vector<Stretch> up)
      : runtime_(communicator.runtime_),
        pinned_(communicator.pinned_),
        buffer_(std::move(buffer)),
        up_(std::move(up)),
        stream_(runtime_.current_stream()) {}

  void operate(const HostOperation& operation) { on_host_ = operation(buffer_.data()); }

  void wait() override {
    if (settled_) return;
    on_host_.wait();
    for (const Stretch& stretch : up_) {
      runtime_.copy(stretch.device, buffer_.data() + stretch.offset, stretch.bytes, stream_);
    }
    if (!up_.empty()) up_there_ = runtime_.record(stream_);
    pinned_.give_back(std::move(buffer_), up_there_);
    settled_ = true;
  }

  bool done() override {
    if (!settled_) {
      if (!on_host_.done()) return false;
      try {
        wait();
      } catch (...) {
        return true;  // with an error, which wait() throws again
      }
    }
    return !up_there_ || up_there_->done();
  }

  bool settled() const { return settled_; }

 private:
  DeviceRuntime& runtime_;
  PinnedPool& pinned_;
  PinnedPool::Buffer buffer_;
  const std::vector<Stretch> up_;
  const DeviceRuntime::Stream stream_;
  Work on_host_;
  bool settled_ = false;
  std::shared_ptr<const DeviceRuntime::Event> up_there_;
};

StagedCommunicator::StagedCommunicator(Communicator& group, DeviceRuntime& runtime, PinnedPool& pinned)
    : Communicator(group.ranks(), group.rank()), group_(group), runtime_(runtime), pinned_(pinned) {}

StagedCommunicator::Stretch StagedCommunicator::own_part(const void* device, std::span<const int64_t> counts,
                                                         DataType type) const {
  COPUS_CHECK(static_cast<int64_t>(counts.size()) == size(), counts.size(), " counts for ", size(), " members");
  const auto own = static_cast<size_t>(rank());
  return {readable(device), bytes_of(counts.first(own), type), counts[own] * size_of(type)};
}

Work StagedCommunicator::start(int64_t bytes, const std::vector<Stretch>& down, std::vector<Stretch> up,
                               const HostOperation& operate) {
  std::erase_if(under_way_, [](const std::shared_ptr<Staged>& staged) { return staged->settled(); });
  PinnedPool::Buffer buffer = pinned_.take(bytes);
  const DeviceRuntime::Stream stream = runtime_.current_stream();
  for (const Stretch& stretch : down) {
    runtime_.copy(buffer.data() + stretch.offset, stretch.device, stretch.bytes, stream);
  }
  if (!down.empty()) runtime_.synchronize(stream);
  auto staged = std::make_shared<Staged>(*this, std::move(buffer), std::move(up));
  under_way_.push_back(staged);
  staged->operate(operate);
  return Work(std::move(staged));
}

Work StagedCommunicator::reduce_staged(void* data, int64_t count, DataType type, const HostOperation& operate) {
  const Stretch all{data, 0, count * size_of(type)};
  return start(all.bytes, {all}, {all}, operate);
}

Work StagedCommunicator::scatter_staged(void* input, void* output, std::span<const int64_t> counts, DataType type,
                                        const HostOperation& operate) {
  const int64_t bytes = bytes_of(counts, type);
  return start(bytes, {{input, 0, bytes}}, {own_part(output, counts, type)}, operate);
}

Work StagedCommunicator::gather_staged(const void* input, void* output, std::span<const int64_t> counts, DataType type,
                                       const HostOperation& operate) {
  const int64_t bytes = bytes_of(counts, type);
  return start(bytes, {own_part(input, counts, type)}, {{output, 0, bytes}}, operate);
}

Work StagedCommunicator::broadcast_staged(void* data, int64_t count, DataType type, int64_t root,
                                          const HostOperation& operate) {
  const Stretch all{data, 0, count * size_of(type)};
  if (rank() == root) return start(all.bytes, {all}, {}, operate);
  return start(all.bytes, {}, {all}, operate);
}

Work StagedCommunicator::send_staged(const void* data, int64_t count, DataType type, const HostOperation& operate) {
  const Stretch all{readable(data), 0, count * size_of(type)};
  return start(all.bytes, {all}, {}, operate);
}

Work StagedCommunicator::start_all_reduce(void* data, int64_t count, DataType type, Reduction reduction) {
  if (!on_device(data, count * size_of(type))) return group_.start_all_reduce(data, count, type, reduction);
  return reduce_staged(data, count, type,
                       [&](std::byte* pinned) { return group_.start_all_reduce(pinned, count, type, reduction); });
}

Work StagedCommunicator::start_reduce_scatter(void* input, void* output, std::span<const int64_t> counts, DataType type,
                                              Reduction reduction) {
  if (!on_device(input, bytes_of(counts, type))) {
    return group_.start_reduce_scatter(input, output, counts, type, reduction);
  }
  return scatter_staged(input, output, counts, type, [&](std::byte* pinned) {
    std::byte* const own = pinned + own_part(output, counts, type).offset;
    return group_.start_reduce_scatter(pinned, own, counts, type, reduction);
  });
}

Work StagedCommunicator::start_all_gather(const void* input, void* output, std::span<const int64_t> counts,
                                          DataType type) {
  if (!on_device(output, bytes_of(counts, type))) return group_.start_all_gather(input, output, counts, type);
  return gather_staged(input, output, counts, type, [&](std::byte* pinned) {
    return group_.start_all_gather(pinned + own_part(input, counts, type).offset, pinned, counts, type);
  });
}

Work StagedCommunicator::start_broadcast(void* data, int64_t count, DataType type, int64_t root) {
  if (!on_device(data, count * size_of(type))) return group_.start_broadcast(data, count, type, root);
  return broadcast_staged(data, count, type, root,
                          [&](std::byte* pinned) { return group_.start_broadcast(pinned, count, type, root); });
}

Work StagedCommunicator::start_send(const void* data, int64_t count, DataType type, int64_t to) {
  if (!on_device(data, count * size_of(type))) return group_.start_send(data, count, type, to);
  return send_staged(data, count, type, [&](std::byte* pinned) { return group_.start_send(pinned, count, type, to); });
}

void StagedCommunicator::receive(void* data, int64_t count, DataType type, int64_t from) {
  const Stretch all{data, 0, count * size_of(type)};
  if (!on_device(data, all.bytes)) return group_.receive(data, count, type, from);
  const auto operate = [&](std::byte* pinned) {
    group_.receive(pinned, count, type, from);
    return Work();
  };
  start(all.bytes, {}, {all}, operate).wait();
}

void StagedCommunicator::barrier() { group_.barrier(); }

void StagedCommunicator::exchange(std::span<const Message> outgoing, std::span<const Message> incoming) {
  std::vector<Message> sends(outgoing.begin(), outgoing.end()), receives(incoming.begin(), incoming.end());
  // All device memory of both directions in one buffer.
  int64_t bytes = 0;
  const auto place = [&](std::span<const Message> messages) {
    std::vector<Stretch> stretches;
    for (const Message& message : messages) {
      stretches.emplace_back();
      if (!on_device(message.data, message.bytes)) continue;
      stretches.back() = {message.data, bytes, message.bytes};
      bytes += message.bytes;
    }
    return stretches;
  };
  const std::vector<Stretch> of_sends = place(outgoing), of_receives = place(incoming);
  const auto in_pinned = [](std::vector<Message>& messages, const std::vector<Stretch>& stretches, std::byte* pinned) {
    for (size_t i = 0; i < messages.size(); ++i) {
      if (stretches[i].bytes > 0) messages[i].data = pinned + stretches[i].offset;
    }
  };
  const auto of_device = [](std::vector<Stretch> stretches) {
    std::erase_if(stretches, [](const Stretch& stretch) { return stretch.bytes == 0; });
    return stretches;
  };
  const auto operate = [&](std::byte* pinned) {
    in_pinned(sends, of_sends, pinned);
    in_pinned(receives, of_receives, pinned);
    group_.exchange(sends, receives);
    return Work();
  };
  start(bytes, of_device(of_sends), of_device(of_receives), operate).wait();
}

void StagedCommunicator::all_reduce(void* data, int64_t count, DataType type, Reduction reduction) {
  if (!on_device(data, count * size_of(type))) return group_.all_reduce(data, count, type, reduction);
  const auto operate = [&](std::byte* pinned) {
    group_.all_reduce(pinned, count, type, reduction);
    return Work();
  };
  reduce_staged(data, count, type, operate).wait();
}

void StagedCommunicator::reduce_scatter(void* input, void* output, std::span<const int64_t> counts, DataType type) {
  if (!on_device(input, bytes_of(counts, type))) return group_.reduce_scatter(input, output, counts, type);
  const auto operate = [&](std::byte* pinned) {
    group_.reduce_scatter(pinned, pinned + own_part(output, counts, type).offset, counts, type);
    return Work();
  };
  scatter_staged(input, output, counts, type, operate).wait();
}

void StagedCommunicator::all_gather(const void* input, void* output, std::span<const int64_t> counts, DataType type) {
  if (!on_device(output, bytes_of(counts, type))) return group_.all_gather(input, output, counts, type);
  const auto operate = [&](std::byte* pinned) {
    group_.all_gather(pinned + own_part(input, counts, type).offset, pinned, counts, type);
    return Work();
  };
  gather_staged(input, output, counts, type, operate).wait();
}

void StagedCommunicator::broadcast(void* data, int64_t count, DataType type, int64_t root) {
  if (!on_device(data, count * size_of(type))) return group_.broadcast(data, count, type, root);
  const auto operate = [&](std::byte* pinned) {
    group_.broadcast(pinned, count, type, root);
    return Work();
  };
  broadcast_staged(data, count, type, root, operate).wait();
}

void StagedCommunicator::send(const void* data, int64_t count, DataType type, int64_t to) {
  if (!on_device(data, count * size_of(type))) return group_.send(data, count, type, to);
  const auto operate = [&](std::byte* pinned) {
    group_.send(pinned, count, type, to);
    return Work();
  };
  send_staged(data, count, type, operate).wait();
}

}  // namespace copus
