// Tests device memory through the host: every operation gives bitwise the same result as in host memory, on a device
// with the longest possible delays, whose memory the host cannot touch.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <barrier>
#include <functional>
#include <memory>
#include <numeric>
#include <utility>
#include <vector>

#include "copus/base/error.h"
#include "copus/comm/gpu/device_world.h"
#include "copus/comm/rank_failure.h"
#include "copus/comm/shared_memory/shared_memory_world.h"
#include "copus/comm/testing/borrowed_world.h"
#include "copus/comm/testing/fake_device_runtime.h"
#include "copus/comm/testing/rank_threads.h"
#include "copus/comm/testing/test_data.h"
#include "copus/comm/testing/test_stress.h"

namespace copus {
namespace {

// The objects of one rank.
struct Rank {
  World& world;
  FakeDeviceRuntime& device;

  // The memory is written by a kernel that runs late.
  std::shared_ptr<void> put(const Bytes& bytes) const {
    auto memory = device.allocate(static_cast<int64_t>(bytes.size()));
    write(memory.get(), bytes);
    return memory;
  }
  void write(void* to, const Bytes& bytes) const {
    device.launch([=, this] { std::copy(bytes.begin(), bytes.end(), device.on_host<std::byte>(to)); },
                  device.current_stream());
  }
  // A kernel's result, which is available when the stream has reached it.
  std::shared_ptr<Bytes> read(const void* from, size_t size) const {
    auto bytes = std::make_shared<Bytes>(size);
    device.launch([=, this] { std::copy_n(device.on_host<std::byte>(from), size, bytes->begin()); },
                  device.current_stream());
    return bytes;
  }
  void synchronize() const { device.synchronize(device.current_stream()); }
  Bytes get(const void* from, size_t size) const {
    const auto bytes = read(from, size);
    synchronize();
    return *bytes;
  }
};

void run_staged(int64_t size, const std::function<void(const Rank&)>& body) {
  run_ranks_as_threads(
      size,
      [&](World& world) {
        const auto device = std::make_shared<FakeDeviceRuntime>();
        const auto staged = stage_through_host(std::make_unique<BorrowedWorld>(world), device);
        body({*staged, *device});
      },
      20);
}

std::byte* at(const std::shared_ptr<void>& memory, int64_t offset) {
  return static_cast<std::byte*>(memory.get()) + offset;
}

constexpr int64_t sizes[] = {0, 1, 1000, 70'001};

TEST(StagedWorld, ReducesAsHostMemoryIsReduced) {
  for (const DataType type : all_types) {
    for (const int64_t count : sizes) {
      for (const Reduction reduction : all_reductions) {
        const auto inputs = make_inputs(3, count, type, 1);
        const Bytes expected = reduce_reference(inputs, type, reduction);
        run_staged(3, [&](const Rank& rank) {
          const Bytes& input = inputs[rank.world.rank()];
          const auto first = rank.put(input), second = rank.put(input);
          Communicator& everyone = rank.world.everyone();
          const Work work = everyone.start_all_reduce(first.get(), count, type, reduction);
          everyone.all_reduce(second.get(), count, type, reduction);
          work.wait();
          EXPECT_TRUE(rank.get(first.get(), input.size()) == expected) << count;
          EXPECT_TRUE(rank.get(second.get(), input.size()) == expected) << count;
        });
      }
    }
  }
}

TEST(StagedWorld, ScattersAndGathersAsHostMemoryDoes) {
  constexpr DataType type = DataType::bfloat16;
  for (const std::vector<int64_t>& counts : {std::vector<int64_t>{300, 0, 20'000}, {1, 2, 3}, {0, 0, 5}, {0, 0, 0}}) {
    const int64_t total = std::accumulate(counts.begin(), counts.end(), int64_t{0});
    const auto inputs = make_inputs(3, total, type, 2);
    const Bytes expected = reduce_reference(inputs, type, Reduction::sum);
    run_staged(3, [&](const Rank& rank) {
      const int64_t here = rank.world.rank();
      const int64_t begin = 2 * std::accumulate(counts.begin(), counts.begin() + here, int64_t{0});
      const int64_t own = 2 * counts[here];
      Communicator& everyone = rank.world.everyone();
      for (const bool blocking : {false, true}) {
        const auto input = rank.put(inputs[here]), in_place = rank.put(inputs[here]);
        const auto output = rank.device.allocate(own), gathered = rank.device.allocate(2 * total);
        if (blocking) {
          everyone.reduce_scatter(input.get(), output.get(), counts, type);
          everyone.reduce_scatter(in_place.get(), at(in_place, begin), counts, type);
          everyone.all_gather(output.get(), gathered.get(), counts, type);
          everyone.all_gather(at(in_place, begin), in_place.get(), counts, type);
        } else {
          const Work a = everyone.start_reduce_scatter(input.get(), output.get(), counts, type, Reduction::sum);
          const Work b =
              everyone.start_reduce_scatter(in_place.get(), at(in_place, begin), counts, type, Reduction::sum);
          b.wait();
          a.wait();
          const Work c = everyone.start_all_gather(output.get(), gathered.get(), counts, type);
          const Work d = everyone.start_all_gather(at(in_place, begin), in_place.get(), counts, type);
          c.wait();
          d.wait();
        }
        EXPECT_TRUE(rank.get(output.get(), own) == slice(expected, begin, own));
        EXPECT_TRUE(rank.get(gathered.get(), expected.size()) == expected);
        EXPECT_TRUE(rank.get(in_place.get(), expected.size()) == expected);
      }
    });
  }
}

TEST(StagedWorld, BroadcastsAndLeavesTheRootsMemoryAlone) {
  for (const int64_t count : sizes) {
    const auto inputs = make_inputs(3, count, DataType::int64, 3);
    run_staged(3, [&](const Rank& rank) {
      for (int64_t root = 0; root < 3; ++root) {
        const auto data = rank.put(inputs[rank.world.rank()]);
        if (root == 1) {
          rank.world.everyone().start(Operation::broadcast(data.get(), count, DataType::int64, root)).wait();
        } else {
          rank.world.everyone().broadcast(data.get(), count, DataType::int64, root);
        }
        EXPECT_TRUE(rank.get(data.get(), inputs[root].size()) == inputs[root]);
      }
    });
  }
}

// Host and device memory in the same groups, with several operations under way at the same time.
TEST(StagedWorld, RandomOperationsGiveWhatTheyShould) {
  for (const uint64_t seed : {1, 2, 3, 4}) {
    run_staged(2 + static_cast<int64_t>(seed % 3),
               [&](const Rank& rank) { EXPECT_EQ(run_random_operations(rank.world, seed, 150, &rank.device), ""); });
  }
}

// A send is done when its memory may be overwritten, whether or not it was received.
TEST(StagedWorld, MessagesMayBeOverwrittenOnceTheyAreSent) {
  constexpr int64_t large = 3'000'000;  // beyond what fits between two ranks
  const Bytes a = make_data(large, DataType::byte, 4), b = make_data(100, DataType::byte, 5);
  run_staged(2, [&](const Rank& rank) {
    Communicator& everyone = rank.world.everyone();
    const int64_t other = 1 - rank.world.rank();
    const auto first = rank.put(a), second = rank.put(b);
    const Work sent = everyone.start_send(first.get(), large, DataType::byte, other);
    const Work sent_too = everyone.start_send(second.get(), 100, DataType::byte, other);
    const auto received = rank.device.allocate(large), received_too = rank.device.allocate(100);
    everyone.receive(received.get(), large, DataType::byte, other);
    everyone.receive(received_too.get(), 100, DataType::byte, other);
    sent.wait();
    rank.write(first.get(), Bytes(large));
    sent_too.wait();
    rank.write(second.get(), Bytes(100));
    EXPECT_TRUE(rank.get(received.get(), large) == a);
    EXPECT_TRUE(rank.get(received_too.get(), 100) == b);
  });
}

// The second message arrives before the first one has been copied to the device.
TEST(StagedWorld, AResultOnItsWayUpIsNotOverwritten) {
  const Bytes a = make_data(500, DataType::byte, 6), b = make_data(500, DataType::byte, 7);
  run_staged(2, [&](const Rank& rank) {
    Communicator& everyone = rank.world.everyone();
    if (rank.world.rank() == 0) {
      Bytes first = a, second = b;
      everyone.send(first.data(), 500, DataType::byte, 1);
      everyone.send(second.data(), 500, DataType::byte, 1);
      return;
    }
    const auto received = rank.device.allocate(500), received_too = rank.device.allocate(500);
    everyone.receive(received.get(), 500, DataType::byte, 0);
    everyone.receive(received_too.get(), 500, DataType::byte, 0);
    const auto contents = rank.read(received.get(), 500), contents_too = rank.read(received_too.get(), 500);
    rank.synchronize();
    EXPECT_TRUE(*contents == a);
    EXPECT_TRUE(*contents_too == b);
  });
}

TEST(StagedWorld, DoneMeansDoneOnTheDevice) {
  const auto inputs = make_inputs(2, 1000, DataType::float32, 8);
  const Bytes expected = reduce_reference(inputs, DataType::float32, Reduction::sum);
  run_staged(2, [&](const Rank& rank) {
    const auto data = rank.put(inputs[rank.world.rank()]);
    const auto pinned = rank.device.allocate_pinned(4000);
    const Work work = rank.world.everyone().start_all_reduce(data.get(), 1000, DataType::float32, Reduction::sum);
    while (!work.done()) std::this_thread::yield();
    // On a stream that does not wait for others.
    const DeviceRuntime::Stream aside = rank.device.make_stream();
    rank.device.copy(pinned.get(), data.get(), 4000, aside);
    rank.device.synchronize(aside);
    EXPECT_TRUE(std::equal(expected.begin(), expected.end(), static_cast<std::byte*>(pinned.get())));
    work.wait();
  });
}

// From every rank to every rank, of any size, some in host memory.
TEST(StagedWorld, ExchangesMessagesOfAllPairsAtOnce) {
  const auto bytes_of = [](int64_t from, int64_t to) { return (from * 4 + to) % 5 * 200'000; };
  const auto data_of = [&](int64_t from, int64_t to) {
    return make_data(bytes_of(from, to), DataType::byte, static_cast<uint64_t>(from * 10 + to));
  };
  run_staged(4, [&](const Rank& rank) {
    const int64_t here = rank.world.rank();
    for (int round = 0; round < 2; ++round) {
      std::vector<std::shared_ptr<void>> memory;
      std::vector<std::unique_ptr<Bytes>> on_host;
      std::vector<Communicator::Message> outgoing, incoming;
      for (int64_t other = 0; other < 4; ++other) {
        if (other == here) continue;
        if ((here + other) % 2 == 0) {
          on_host.push_back(std::make_unique<Bytes>(data_of(here, other)));
          outgoing.push_back({other, on_host.back()->data(), bytes_of(here, other)});
          on_host.push_back(std::make_unique<Bytes>(bytes_of(other, here)));
          incoming.push_back({other, on_host.back()->data(), bytes_of(other, here)});
        } else {
          memory.push_back(rank.put(data_of(here, other)));
          outgoing.push_back({other, memory.back().get(), bytes_of(here, other)});
          memory.push_back(rank.device.allocate(bytes_of(other, here)));
          incoming.push_back({other, memory.back().get(), bytes_of(other, here)});
        }
      }
      rank.world.everyone().exchange(outgoing, incoming);
      for (const Communicator::Message& message : outgoing) {
        if (rank.device.is_device_memory(message.data)) rank.write(message.data, Bytes(message.bytes));
      }
      for (const Communicator::Message& message : incoming) {
        EXPECT_TRUE(rank.get(message.data, message.bytes) == data_of(message.member, here));
      }
      rank.world.everyone().exchange({}, {});
    }
  });
}

TEST(SharedDevices, AreKnownByTheirIdentity) {
  for (const bool shared : {false, true}) {
    run_ranks_as_threads(4, [&](World& world) {
      const int64_t device = shared && world.rank() == 3 ? 0 : world.rank() % 2;
      const std::string identity = concat("a machine ", world.rank() / 2, " 0000:0", device);
      const DevicePlaces places = find_device_places(world, FakeDeviceRuntime({.identity = identity}));
      EXPECT_EQ(places.machines, 2);
      EXPECT_EQ(places.sharing.value_or(std::pair{int64_t{-1}, int64_t{-1}}),
                (shared ? std::pair{int64_t{2}, int64_t{3}} : std::pair{int64_t{-1}, int64_t{-1}}));
    });
  }
}

// All operations complete in time, whatever the order of waits on their handles.
TEST(StagedWorld, PinnedMemoryIsUsedAgain) {
  class Counting final : public DeviceRuntime {
   public:
    std::string identity() const override { return device_.identity(); }
    std::string name() const override { return device_.name(); }
    int64_t driver_version() const override { return device_.driver_version(); }
    bool is_device_memory(const void* address) const override { return device_.is_device_memory(address); }
    Stream current_stream() const override { return device_.current_stream(); }
    Stream make_stream() override { return device_.make_stream(); }
    std::unique_ptr<Event> record(Stream stream) override { return device_.record(stream); }
    void wait(Stream stream, const Event& event) override { device_.wait(stream, event); }
    void synchronize(Stream stream) override { device_.synchronize(stream); }
    void copy(void* to, const void* from, int64_t bytes, Stream stream) override {
      device_.copy(to, from, bytes, stream);
    }
    std::shared_ptr<void> allocate(int64_t bytes) override { return device_.allocate(bytes); }
    std::shared_ptr<void> allocate_pinned(int64_t bytes) override {
      ++allocations;
      return device_.allocate_pinned(bytes);
    }
    Memory memory() const override { return device_.memory(); }
    std::atomic<int> allocations = 0;

   private:
    FakeDeviceRuntime device_;
  };
  run_ranks_as_threads(2, [&](World& world) {
    const auto device = std::make_shared<Counting>();
    const auto staged = stage_through_host(std::make_unique<BorrowedWorld>(world), device);
    const auto memory = device->allocate(1 << 20);
    for (int i = 0; i < 50; ++i) {
      std::vector<Work> works;
      for (int64_t k = 0; k < 3; ++k) {
        works.push_back(staged->everyone().start_all_reduce(at(memory, k << 18), 1000 * (1 + (i + k) % 4),
                                                            DataType::float32, Reduction::sum));
      }
      for (const Work& work : works) work.wait();
    }
    device->synchronize(device->current_stream());
    EXPECT_LE(device->allocations, 3) << "three operations are under way at most, and all sizes share a unit";
  });
}

// A failed rank ends the others' waits, and buffers stay allocated while threads may use them.
TEST(StagedWorld, AFailureEndsAllWaits) {
  const auto segment = std::make_shared<SharedSegment>(SharedSegment::create(3));
  std::atomic<int> failed = 0;
  std::barrier all_have_begun(3);  // no rank fails while another one may still be in the first sum
  std::vector<std::thread> ranks;
  for (int64_t rank = 0; rank < 3; ++rank) {
    ranks.emplace_back([&, rank] {
      const auto device = std::make_shared<FakeDeviceRuntime>();
      const auto world = stage_through_host(join_shared_memory(segment, rank, 3, 20, false), device);
      const auto memory = device->allocate(5'000'000);
      world->everyone().all_reduce(memory.get(), 10, DataType::float32);
      all_have_begun.arrive_and_wait();
      if (rank == 2) {
        world->health().report({2, "a test", "ends early"});
        device->synchronize(device->current_stream());
        return;
      }
      const Work reduced = world->everyone().start_all_reduce(memory.get(), 1'000'000, DataType::float32, {});
      const Work sent = world->everyone().start_send(memory.get(), 5'000'000, DataType::byte, 2);
      try {
        reduced.wait();
      } catch (const RankFailure& failure) {
        if (failure.report().rank == 2) ++failed;
      }
      EXPECT_THROW(world->everyone().receive(memory.get(), 8, DataType::byte, 2), RankFailure);
      while (!sent.done()) std::this_thread::yield();
      EXPECT_THROW(sent.wait(), RankFailure);
      EXPECT_TRUE(reduced.done());
      device->synchronize(device->current_stream());
    });
  }
  for (std::thread& rank : ranks) rank.join();
  EXPECT_EQ(failed, 2);
}

}  // namespace
}  // namespace copus
