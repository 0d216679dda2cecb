// Tests the properties of every world that wraps another world: it forwards what it does not change, its groups check
// their arguments, and its parts are destroyed in the order of their dependencies.
#include <gtest/gtest.h>

#include <array>
#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "copus/base/error.h"
#include "copus/comm/first_ranks_world.h"
#include "copus/comm/gpu/device_world.h"
#include "copus/comm/shared_memory/shared_memory_world.h"
#include "copus/comm/solo_communicator.h"
#include "copus/comm/testing/nccl_test_support.h"
#include "copus/comm/testing/test_worlds.h"
#include "copus/comm/timed/timed_world.h"

namespace copus {
namespace {

const ClusterDescription one_rank_a_node{
    .ranks_per_node = 1, .within_node = {1e-6, 1e9}, .between_nodes = {1e-6, 1e9}, .flops_per_second = 1};

enum class Wrapper { unwrapped, borrowed, first_of_it, late, virtual_time, staged, nccl };

std::string name_of_wrapper(const testing::TestParamInfo<Wrapper>& info) {
  return std::array{
      "none", "borrowed", "first_ranks", "late", "virtual_time", "staged", "nccl"}[static_cast<int>(info.param)];
}

// One rank's device, its library, and the wrapped world that uses both and is therefore destroyed first.
struct Wrapped {
  Wrapped(Wrapper wrapper, std::unique_ptr<World> inner, MockNccl& nccl) {
    switch (wrapper) {
      case Wrapper::unwrapped:
        world = std::move(inner);
        break;
      case Wrapper::borrowed:
        inner_world = std::move(inner);
        world = std::make_unique<BorrowedWorld>(*inner_world);
        break;
      case Wrapper::first_of_it:
        inner_world = std::move(inner);
        world = first_ranks(*inner_world, inner_world->size());
        break;
      case Wrapper::late:
        world = with_links(std::move(inner), one_rank_a_node, ClockKind::wall);
        break;
      case Wrapper::virtual_time:
        world = with_links(std::move(inner), one_rank_a_node, ClockKind::virtual_time);
        break;
      case Wrapper::staged:
        world = stage_through_host(std::move(inner), device);
        break;
      case Wrapper::nccl:
        const int64_t rank = inner->rank();
        world = over_nccl(std::move(inner), device, patient_seconds, nccl.interface_of(rank, *device));
        break;
    }
  }

  std::shared_ptr<FakeDeviceRuntime> device =
      std::make_shared<FakeDeviceRuntime>(FakeDeviceRuntime::Options{.runs_by_itself = true});
  std::unique_ptr<World> inner_world;  // the borrowed one
  std::unique_ptr<World> world;
};

class WrappedWorlds : public testing::TestWithParam<Wrapper> {};

// The inner world, of three ranks.
class ToldWorld final : public WrappedWorld {
 public:
  explicit ToldWorld(World& world) : WrappedWorld(world) {}
  std::optional<std::string> prepare(const std::vector<GroupUse>& groups) override {
    prepared_ = groups.front().ranks;
    return std::nullopt;
  }
  int64_t communicator_bytes() const override { return 1000 + rank(); }
  const std::vector<int64_t>& prepared() const { return prepared_; }

 private:
  std::vector<int64_t> prepared_;
};

TEST_P(WrappedWorlds, PassOnWhatTheyDoNotChange) {
  MockNccl nccl;
  run_ranks_as_threads(3, [&](World& world) {
    auto owned = std::make_unique<ToldWorld>(world);
    ToldWorld& told = *owned;
    const Wrapped wrapped(GetParam(), std::move(owned), nccl);
    World& outer = *wrapped.world;
    EXPECT_EQ(outer.rank(), world.rank());
    EXPECT_EQ(outer.size(), 3);
    EXPECT_EQ(&outer.health(), &world.health());
    EXPECT_EQ(&outer.clock() == &world.clock(), GetParam() != Wrapper::virtual_time);
    outer.require({{.ranks = {2, 0, 1}}});
    EXPECT_EQ(told.prepared(), (std::vector<int64_t>{2, 0, 1}));
    const int64_t of_library = nccl.communicators(world.rank()) * MockNccl::communicator_bytes;
    EXPECT_EQ(outer.communicator_bytes(), 1000 + world.rank() + of_library);
    Communicator& group = outer.group({2, 0, 1});
    EXPECT_EQ(&group, &outer.group({2, 0, 1}));
    EXPECT_EQ(group.ranks(), (std::vector<int64_t>{2, 0, 1}));
    EXPECT_EQ(group.rank(), (world.rank() + 1) % 3);
  });
}

TEST_P(WrappedWorlds, RefuseWhatIsNoGroup) {
  MockNccl nccl;
  run_ranks_as_threads(3, [&](World& world) {
    const Wrapped wrapped(GetParam(), std::make_unique<BorrowedWorld>(world), nccl);
    const int64_t rank = world.rank(), other = (rank + 1) % 3;
    for (const std::vector<int64_t>& ranks :
         std::vector<std::vector<int64_t>>{{other}, {rank, other, rank}, {rank, 3}, {-1, rank}, {}}) {
      EXPECT_THROW(wrapped.world->group(ranks), InternalError);
    }
  });
}

void expect_refusals(Communicator& group, void* data) {
  const int64_t size = group.size(), self = group.rank(), other = (self + 1) % size;
  constexpr DataType byte = DataType::byte;
  const auto start_or_run = [&](const Operation& operation) {
    EXPECT_THROW(group.start(operation), InternalError) << to_string(operation.kind);
    EXPECT_THROW(group.run(operation), InternalError) << to_string(operation.kind);
  };
  start_or_run(Operation::all_reduce(data, -1, byte, Reduction::sum));
  const std::vector<int64_t> too_few(size - 1, 1), too_many(size + 1, 1);
  std::vector<int64_t> negative(size, 2);
  negative.back() = -1;
  for (const auto& counts : {too_few, too_many, negative}) {
    start_or_run(Operation::reduce_scatter(data, data, counts, byte, Reduction::sum));
    start_or_run(Operation::all_gather(data, data, counts, byte));
  }
  for (const int64_t member : {int64_t{-1}, size}) start_or_run(Operation::broadcast(data, 1, byte, member));
  for (const int64_t member : {int64_t{-1}, size, self}) {
    start_or_run(Operation::send(data, 1, byte, member));
    start_or_run(Operation::receive(data, 1, byte, member));
    const std::vector<Message> messages = {{member, data, 1}};
    EXPECT_THROW(group.exchange(messages, {}), InternalError);
    EXPECT_THROW(group.exchange({}, messages), InternalError);
  }
  if (size == 1) return;
  const std::vector<Message> negative_message = {{other, data, -1}};
  EXPECT_THROW(group.exchange(negative_message, {}), InternalError);
  start_or_run(Operation::send(data, -1, byte, other));
  EXPECT_THROW(group.start({.kind = OperationKind::barrier}), InternalError);
  start_or_run(Operation::receive(data, -1, byte, other));
  EXPECT_THROW(group.start({.kind = OperationKind::exchange}), InternalError);
}

TEST_P(WrappedWorlds, GroupsRefuseArgumentsThatDoNotFit) {
  MockNccl nccl;
  run_ranks_as_threads(2, [&](World& world) {
    const Wrapped wrapped(GetParam(), std::make_unique<BorrowedWorld>(world), nccl);
    std::array<std::byte, 8> on_host{};
    const std::shared_ptr<void> on_device = wrapped.device->allocate(8);
    wrapped.world->require({{.ranks = {0, 1}, .messages = GroupUse::Messages::line, .exchanges = true}});
    for (void* const data : {static_cast<void*>(on_host.data()), on_device.get()}) {
      expect_refusals(wrapped.world->everyone(), data);
      expect_refusals(wrapped.world->group({world.rank()}), data);
    }
    // No rank has sent anything.
    wrapped.world->everyone().barrier();
  });
}

// A rank leaves while the other rank has not yet reached the operation that the first one started. The operation's
// thread still writes the result. If the result's memory were freed, a sanitizer would report it.
TEST_P(WrappedWorlds, MayEndWhileAnOperationIsUnderWay) {
  if (GetParam() == Wrapper::nccl) GTEST_SKIP() << "a world over NCCL waits for what is under way";
  MockNccl nccl;
  const auto segment = std::make_shared<SharedSegment>(SharedSegment::create(2));
  std::vector<float> on_host(100'000);  // outlives both
  std::vector<std::thread> ranks;
  for (int64_t rank = 0; rank < 2; ++rank) {
    ranks.emplace_back([&, rank] {
      const Wrapped wrapped(GetParam(), join_shared_memory(segment, rank, 2, 20, false), nccl);
      Communicator& everyone = wrapped.world->everyone();
      if (rank == 0) {
        std::shared_ptr<void> on_device;
        if (GetParam() == Wrapper::staged) on_device = wrapped.device->allocate(std::ssize(on_host) * 4);
        everyone.start(Operation::broadcast(on_device ? on_device.get() : on_host.data(), std::ssize(on_host),
                                            DataType::float32, 1));
        return;
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
      std::vector<float> sent(on_host.size(), 1);
      // How many broadcasts rank 0 completes varies: operations queued after the current one are dropped.
      const Work work = everyone.start(Operation::broadcast(sent.data(), std::ssize(sent), DataType::float32, 1));
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
      wrapped.world->health().report({0, "a test", "has left"});
      EXPECT_THROW(
          {
            work.wait();
            everyone.barrier();
          },
          RankFailure);
    });
  }
  for (std::thread& rank : ranks) rank.join();
}

INSTANTIATE_TEST_SUITE_P(all, WrappedWorlds,
                         testing::Values(Wrapper::unwrapped, Wrapper::borrowed, Wrapper::first_of_it, Wrapper::late,
                                         Wrapper::virtual_time, Wrapper::staged, Wrapper::nccl),
                         name_of_wrapper);

using Log = std::vector<std::string>;

// Records its destruction.
class Ending {
 public:
  Ending(Log& log, std::string name) : log_(log), name_(std::move(name)) {}
  Ending(const Ending&) = delete;
  Ending& operator=(const Ending&) = delete;
  ~Ending() { log_.push_back(name_); }

 private:
  Log& log_;
  const std::string name_;
};

class EndingGroup final : public Communicator {
 public:
  EndingGroup(Log& log, std::string name) : Communicator({0}, 0), ending_(log, std::move(name)) {}

 private:
  Work do_start(const Operation& /*operation*/) override { return {}; }
  void do_run(const Operation& /*operation*/) override {}

  Ending ending_;
};

template <class Base>
class EndingWorld final : public Base {
 public:
  template <class... Arguments>
  EndingWorld(Log& log, const std::string& name, Arguments... arguments)
      : Base(std::move(arguments)..., std::make_shared<Ending>(log, name + ": what groups use")),
        log_(log),
        name_(name),
        ending_(log, name + ": members") {}

  Health& health() override { COPUS_CHECK(false); }
  RankClock& clock() override { COPUS_CHECK(false); }

 private:
  std::unique_ptr<Communicator> make_group(const std::vector<int64_t>& /*ranks*/, int64_t /*member*/) override {
    return std::make_unique<EndingGroup>(log_, name_ + ": groups");
  }

  Log& log_;
  const std::string name_;
  Ending ending_;
};

TEST(World, PartsEndInTheOrderInWhichTheyNeedOneAnother) {
  Log log;
  {
    auto inner = std::make_unique<EndingWorld<World>>(log, "inner", 0, 1);
    inner->everyone();
    EndingWorld<WrappedWorld> outer(log, "outer", std::move(inner));
    outer.everyone();
  }
  EXPECT_EQ(log, (Log{"outer: members", "inner: members", "inner: groups", "inner: what groups use", "outer: groups",
                      "outer: what groups use"}));
}

}  // namespace
}  // namespace copus
