#include "copus/comm/testing/test_stress.h"

#include <algorithm>
#include <deque>
#include <memory>
#include <numeric>
#include <optional>
#include <random>
#include <thread>
#include <vector>

#include "copus/base/error.h"
#include "copus/comm/testing/test_data.h"

namespace copus {

namespace {

using Random = std::mt19937_64;

int64_t draw(Random& random, int64_t limit) { return static_cast<int64_t>(random() % static_cast<uint64_t>(limit)); }

enum class Kind { all_reduce, reduce_scatter, all_gather, broadcast, message, barrier };

struct DrawnOperation {
  int64_t number;
  std::vector<int64_t> ranks;
  Kind kind;
  DataType type;
  Reduction reduction;
  int64_t count;
  std::vector<int64_t> counts;  // of the members, together `count`
  int64_t root;                 // or the sender
  int64_t receiver;
};

DrawnOperation draw_operation(Random& random, int64_t number, int64_t size) {
  DrawnOperation operation{};
  operation.number = number;
  operation.ranks.resize(size);
  std::iota(operation.ranks.begin(), operation.ranks.end(), 0);
  // Few enough different groups that each is used repeatedly.
  const int64_t shape = draw(random, 3);
  if (shape == 1) std::reverse(operation.ranks.begin(), operation.ranks.end());
  if (shape == 2) {
    const int64_t left_out = draw(random, size);
    if (size > 2) operation.ranks.erase(operation.ranks.begin() + left_out);
  }
  const auto members = static_cast<int64_t>(operation.ranks.size());
  operation.kind = static_cast<Kind>(draw(random, 6));
  operation.type = all_types[draw(random, 5)];
  operation.reduction = all_reductions[operation.kind == Kind::all_reduce ? draw(random, 2) : 0];
  constexpr int64_t limits[] = {2, 30, 3000, 30'000, 300'000};
  operation.count = draw(random, limits[draw(random, draw(random, 8) == 0 ? 5 : 4)]);
  operation.root = draw(random, members);
  operation.receiver = (operation.root + 1 + draw(random, members - 1)) % members;
  operation.counts.assign(members, 0);
  for (int64_t member = 0, left = operation.count; member < members; ++member) {
    operation.counts[member] = member + 1 == members ? left : draw(random, left + 1);
    left -= operation.counts[member];
  }
  return operation;
}

// Bytes on the host or on a device, where kernels write and read them.
class Place {
 public:
  Place(const Bytes& bytes, FakeDeviceRuntime* device) : host_(bytes), device_(device) {
    if (device == nullptr) return;
    memory_ = device->allocate(static_cast<int64_t>(bytes.size()));
    device->launch([=, to = address()] { std::copy(bytes.begin(), bytes.end(), device->on_host<std::byte>(to)); },
                   device->current_stream());
  }

  void* address() { return memory_ ? memory_.get() : host_.data(); }

  // The current content, also of device memory. It is read without an extra copy on the host.
  Bytes contents() {
    if (device_ == nullptr) return host_;
    const DeviceRuntime::Stream stream = device_->current_stream();
    device_->launch(
        [this] {
          const auto* const from = device_->on_host<std::byte>(memory_.get());
          std::copy_n(from, host_.size(), host_.begin());
        },
        stream);
    device_->synchronize(stream);
    return host_;
  }

 private:
  Bytes host_;
  FakeDeviceRuntime* device_;
  std::shared_ptr<void> memory_;
};

// This rank's part in an operation, and the expected result.
class Part {
 public:
  Part(World& world, const DrawnOperation& operation, uint64_t seed, FakeDeviceRuntime* device)
      : operation_(operation), communicator_(world.group(operation.ranks)) {
    const int64_t member = communicator_.rank();
    const auto data_seed = seed * 1000 + static_cast<uint64_t>(operation.number);
    const int64_t element = size_of(operation.type);
    const auto inputs = make_inputs(communicator_.size(), operation.count, operation.type, data_seed);
    const int64_t begin =
        element * std::accumulate(operation.counts.begin(), operation.counts.begin() + member, int64_t{0});
    const int64_t own = element * operation.counts[member];
    Bytes data = inputs[member], output;
    switch (operation.kind) {
      case Kind::all_reduce:
        expected_ = reduce_reference(inputs, operation.type, operation.reduction);
        break;
      case Kind::reduce_scatter:
        expected_ = slice(reduce_reference(inputs, operation.type, Reduction::sum), begin, own);
        output.resize(expected_.size());
        break;
      case Kind::all_gather:
        expected_ = inputs[0];
        output.resize(expected_.size());
        data = slice(expected_, begin, own);
        break;
      case Kind::broadcast:
        expected_ = inputs[operation.root];
        break;
      case Kind::message:
        expected_ = member == operation.receiver ? inputs[operation.root] : data;
        break;
      case Kind::barrier:
        expected_ = data;
        break;
    }
    data_.emplace(data, device);
    output_.emplace(output, device);
  }

  void start(bool blocking) {
    const auto [number, ranks, kind, type, reduction, count, counts, root, receiver] = operation_;
    switch (kind) {
      case Kind::all_reduce:
        work_ = communicator_.start_all_reduce(data_->address(), count, type, reduction);
        break;
      case Kind::reduce_scatter:
        work_ = communicator_.start_reduce_scatter(data_->address(), output_->address(), counts, type, Reduction::sum);
        break;
      case Kind::all_gather:
        if (blocking) return communicator_.all_gather(data_->address(), output_->address(), counts, type);
        work_ = communicator_.start_all_gather(data_->address(), output_->address(), counts, type);
        break;
      case Kind::broadcast:
        if (blocking) return communicator_.broadcast(data_->address(), count, type, root);
        work_ = communicator_.start(Operation::broadcast(data_->address(), count, type, root));
        break;
      case Kind::message:
        if (communicator_.rank() == root) work_ = communicator_.start_send(data_->address(), count, type, receiver);
        if (communicator_.rank() == receiver) communicator_.receive(data_->address(), count, type, root);
        break;
      case Kind::barrier:
        communicator_.barrier();
        break;
    }
    if (blocking) work_.wait();
  }

  // Waits for the end. Returns an error, or an empty text.
  std::string finish() {
    work_.wait();
    const bool in_place = operation_.kind != Kind::reduce_scatter && operation_.kind != Kind::all_gather;
    if ((in_place ? data_ : output_)->contents() == expected_) return "";
    return concat("operation ", operation_.number, " of kind ", static_cast<int>(operation_.kind), ", ",
                  operation_.count, " elements of type ", static_cast<int>(operation_.type));
  }

 private:
  const DrawnOperation operation_;
  Communicator& communicator_;
  std::optional<Place> data_, output_;
  Bytes expected_;
  Work work_;
};

}  // namespace

std::string run_random_operations(World& world, uint64_t seed, int64_t operations, FakeDeviceRuntime* device) {
  Random shared(seed);
  Random own(seed * 64 + static_cast<uint64_t>(world.rank()));
  std::deque<std::unique_ptr<Part>> started;
  std::string error;
  const auto finish_first = [&] {
    const std::string found = started.front()->finish();
    started.pop_front();
    if (error.empty()) error = found;
  };
  for (int64_t number = 0; number < operations; ++number) {
    const DrawnOperation operation = draw_operation(shared, number, world.size());
    if (std::find(operation.ranks.begin(), operation.ranks.end(), world.rank()) == operation.ranks.end()) continue;
    started.push_back(std::make_unique<Part>(world, operation, seed, number % 2 == 0 ? device : nullptr));
    for (int64_t pause = draw(own, 4); pause > 0; --pause) std::this_thread::yield();
    started.back()->start(draw(own, 2) == 0);
    while (draw(own, 3) == 0 && !started.empty()) finish_first();
  }
  while (!started.empty()) finish_first();
  return error;
}

}  // namespace copus
