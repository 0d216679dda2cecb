// Tests every operation over every connection that ranks of one process can have, against references that are computed
// element by element.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <deque>
#include <functional>
#include <numeric>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "copus/base/numbers/mix_bits.h"
#include "copus/comm/testing/test_data.h"
#include "copus/comm/testing/test_stress.h"
#include "copus/comm/testing/test_worlds.h"
#include "copus/comm/world.h"

namespace copus {
namespace {

// Uneven shares, some of them empty.
std::vector<int64_t> uneven_counts(int64_t members, int64_t total, uint64_t seed) {
  std::vector<int64_t> counts(members);
  for (int64_t left = total, member = 0; member < members; ++member) {
    const auto bits = static_cast<int64_t>(mix_bits(seed + static_cast<uint64_t>(member)) >> 1);
    counts[member] = member + 1 == members ? left : (bits % 3 == 0 ? 0 : bits % (left + 1));
    left -= counts[member];
  }
  return counts;
}

int64_t sum(const std::vector<int64_t>& counts) { return std::accumulate(counts.begin(), counts.end(), int64_t{0}); }

struct Case {
  DataType type;
  int64_t count;
};

// All sizes in fp32; in other types, sizes that use different code paths.
std::vector<Case> all_cases() {
  std::vector<Case> cases;
  for (const DataType type : all_types) {
    for (const int64_t count : {0, 1, 7, 1000, (64 << 10) + 3}) cases.push_back({type, count});
  }
  for (const int64_t count : {2, 3, 16, 63, 4096, 4097, 300'001}) cases.push_back({DataType::float32, count});
  return cases;
}

// For every kind of world and number of ranks.
class Collectives : public testing::TestWithParam<std::tuple<WorldKind, int64_t>> {
 protected:
  int64_t size() const { return std::get<1>(GetParam()); }
  void run(const std::function<void(World&)>& body) const { run_ranks(std::get<0>(GetParam()), size(), body); }
};

std::string name_of_kind(const testing::TestParamInfo<WorldKind>& info) { return name_of(info.param); }
std::string name_of_case(const testing::TestParamInfo<std::tuple<WorldKind, int64_t>>& info) {
  return name_of(std::get<0>(info.param)) + "_" + std::to_string(std::get<1>(info.param));
}

TEST_P(Collectives, AllReduceEqualsTheSumInTheOrderOfTheMembers) {
  run([&](World& world) {
    for (const auto& [type, count] : all_cases()) {
      for (const Reduction reduction : all_reductions) {
        const auto inputs = make_inputs(size(), count, type, 1);
        const Bytes expected = reduce_reference(inputs, type, reduction);
        Bytes data = inputs[world.rank()];
        world.everyone().all_reduce(data.data(), count, type, reduction);
        EXPECT_TRUE(data == expected) << count << " elements of type " << static_cast<int>(type);
        data = inputs[world.rank()];
        world.everyone().start_all_reduce(data.data(), count, type, reduction).wait();
        EXPECT_TRUE(data == expected) << count << " elements of type " << static_cast<int>(type);
      }
    }
  });
}

TEST_P(Collectives, AllReduceOfManyPiecesEqualsThatOfItsParts) {
  const int64_t count = (5 << 20) + 17;
  run([&](World& world) {
    const Bytes input = make_data(count, DataType::bfloat16, static_cast<uint64_t>(world.rank()));
    Bytes whole = input;
    world.everyone().all_reduce(whole.data(), count, DataType::bfloat16);
    Bytes parts = input;
    for (int64_t begin = 0, part = 1; begin < count; begin += part, part *= 3) {
      world.everyone().all_reduce(parts.data() + begin * 2, std::min(part, count - begin), DataType::bfloat16);
    }
    EXPECT_TRUE(whole == parts);
  });
}

TEST_P(Collectives, ReduceScatterAndAllGatherAgreeWithTheReferenceAndWithAllReduce) {
  run([&](World& world) {
    const int64_t rank = world.rank();
    for (const auto& [type, total] : all_cases()) {
      for (uint64_t seed = 0; seed < 2; ++seed) {
        const auto counts = uneven_counts(size(), total, seed);
        const auto inputs = make_inputs(size(), total, type, seed);
        const Bytes expected = reduce_reference(inputs, type, Reduction::sum);
        const int64_t begin = sum({counts.begin(), counts.begin() + rank}) * size_of(type);
        const int64_t bytes = counts[rank] * size_of(type);
        Bytes input = inputs[rank];
        Bytes output(bytes);
        world.everyone().reduce_scatter(input.data(), output.data(), counts, type);
        EXPECT_TRUE(output == slice(expected, begin, bytes)) << total;
        // In place.
        world.everyone().reduce_scatter(input.data(), input.data() + begin, counts, type);
        EXPECT_TRUE(slice(input, begin, bytes) == output) << total;

        Bytes gathered(expected.size());
        world.everyone().all_gather(output.data(), gathered.data(), counts, type);
        EXPECT_TRUE(gathered == expected) << total;
        Bytes in_place(expected.size());
        std::copy(output.begin(), output.end(), in_place.begin() + begin);
        world.everyone().start_all_gather(in_place.data() + begin, in_place.data(), counts, type).wait();
        EXPECT_TRUE(in_place == expected) << total;

        Bytes all = inputs[rank];
        world.everyone().all_reduce(all.data(), total, type);
        EXPECT_TRUE(all == gathered) << total;
      }
    }
  });
}

TEST_P(Collectives, BroadcastGivesTheDataOfEveryRoot) {
  run([&](World& world) {
    for (const auto& [type, count] : all_cases()) {
      const auto inputs = make_inputs(size(), count, type, 2);
      for (int64_t root = 0; root < size(); ++root) {
        Bytes data = inputs[world.rank()];
        world.everyone().broadcast(data.data(), count, type, root);
        EXPECT_TRUE(data == inputs[root]) << count;
      }
      world.everyone().barrier();
    }
  });
}

INSTANTIATE_TEST_SUITE_P(ranks, Collectives,
                         testing::Combine(testing::ValuesIn(world_kinds), testing::Values(1, 2, 3, 4, 5)),
                         name_of_case);

class AllWorlds : public testing::TestWithParam<WorldKind> {};
using Groups = AllWorlds;
using Asynchronous = AllWorlds;
using Messages = AllWorlds;

TEST_P(Groups, OverlapAndMayBeAskedForInAnyOrder) {
  const std::vector<std::vector<int64_t>> groups = {{0, 1}, {2, 3}, {0, 2},       {1, 3},      {3, 1},
                                                    {0, 3}, {1, 2}, {0, 1, 2, 3}, {3, 2, 1, 0}};
  run_ranks(GetParam(), 4, [&](World& world) {
    std::vector<std::vector<int64_t>> own;
    for (const auto& group : groups) {
      if (std::count(group.begin(), group.end(), world.rank()) > 0) own.push_back(group);
    }
    auto asked = own;
    std::rotate(asked.begin(), asked.begin() + world.rank(), asked.end());
    for (const auto& group : asked) world.group(group);
    for (const auto& group : own) {
      Communicator& communicator = world.group(group);
      EXPECT_EQ(&communicator, &world.group(group));
      EXPECT_EQ(communicator.ranks(), group);
      EXPECT_EQ(group[communicator.rank()], world.rank());
      std::vector<int64_t> gathered(group.size());
      const std::vector<int64_t> counts(group.size(), 1);
      const int64_t rank = world.rank();
      communicator.all_gather(&rank, gathered.data(), counts, DataType::int64);
      EXPECT_EQ(gathered, group);
    }
  });
}

TEST_P(Asynchronous, OperationsOfSeveralGroupsRunBesideEachOther) {
  const int64_t count = 100'000;
  run_ranks(GetParam(), 4, [&](World& world) {
    const int64_t rank = world.rank();
    Communicator& row = world.group(rank < 2 ? std::vector<int64_t>{0, 1} : std::vector<int64_t>{2, 3});
    Communicator& column = world.group(rank % 2 == 0 ? std::vector<int64_t>{0, 2} : std::vector<int64_t>{1, 3});
    std::vector<std::vector<int64_t>> data(8, std::vector<int64_t>(count, rank));
    std::vector<Work> works;
    // Half of the ranks begin with their row, the others with their column. Neither half waits for the other.
    for (size_t i = 0; i < data.size(); ++i) {
      Communicator& group = (i % 2 == 0) == (rank % 3 == 0) ? row : column;
      works.push_back(group.start_all_reduce(data[i].data(), count, DataType::int64, Reduction::sum));
    }
    for (size_t i = works.size(); i-- > 0;) works[i].wait();
    for (size_t i = 0; i < data.size(); ++i) {
      const bool in_row = (i % 2 == 0) == (rank % 3 == 0);
      const int64_t other = in_row ? rank ^ 1 : rank ^ 2;
      EXPECT_EQ(data[i], std::vector<int64_t>(count, rank + other)) << i;
    }
  });
}

TEST_P(Messages, LargerThanTheirRingCrossEachOther) {
  const int64_t count = (5 << 20) + 3;
  const auto inputs = make_inputs(3, count, DataType::byte, 3);
  run_ranks(GetParam(), 3, [&](World& world) {
    Communicator& everyone = world.everyone();
    std::vector<Work> works;
    for (int64_t to = 0; to < 3; ++to) {
      if (to == world.rank()) continue;
      works.push_back(everyone.start_send(inputs[world.rank()].data(), count, DataType::byte, to));
    }
    for (int64_t from = 0; from < 3; ++from) {
      if (from == world.rank()) continue;
      Bytes received(count);
      everyone.receive(received.data(), count, DataType::byte, from);
      EXPECT_TRUE(received == inputs[from]);
    }
    for (const Work& work : works) work.wait();
  });
}

TEST_P(Messages, ArriveInOrderWhateverTheirSizeAndWhereverTheRingEnds) {
  std::vector<int64_t> sizes;
  for (uint64_t i = 0; i < 300; ++i) {
    const auto bits = static_cast<int64_t>(mix_bits(i) >> 1);
    sizes.push_back(bits % 7 == 0 ? 0 : bits % (bits % 11 == 0 ? 3'000'001 : 70'001));
  }
  run_ranks(GetParam(), 2, [&](World& world) {
    Communicator& everyone = world.everyone();
    std::deque<std::pair<Bytes, Work>> sent;
    for (size_t i = 0; i < sizes.size(); ++i) {
      const Bytes data = make_data(sizes[i], DataType::byte, i);
      size_t number = i;
      if (world.rank() == 0) {
        auto& [kept, work] = sent.emplace_back(data, Work());
        work = everyone.start_send(kept.data(), sizes[i], DataType::byte, 1);
        if (i % 50 == 0) everyone.send(&number, 1, DataType::int64, 1);
      } else {
        Bytes received(sizes[i]);
        everyone.receive(received.data(), sizes[i], DataType::byte, 0);
        EXPECT_TRUE(received == data) << "message " << i;
        if (i % 50 == 0) everyone.receive(&number, 1, DataType::int64, 0);
        EXPECT_EQ(number, i);
      }
    }
    for (const auto& [data, work] : sent) work.wait();
  });
}

TEST_P(Messages, ThatFitNeedNoReceiver) {
  run_ranks(GetParam(), 2, [](World& world) {
    Communicator& everyone = world.everyone();
    const std::vector<float> activations(256 << 10, 1.5F);
    const int64_t other = 1 - world.rank();
    EXPECT_TRUE(everyone.start_send(activations.data(), std::ssize(activations), DataType::float32, other).done());
    everyone.barrier();
    std::vector<float> received(activations.size());
    everyone.receive(received.data(), std::ssize(received), DataType::float32, other);
    EXPECT_EQ(received, activations);
  });
}

TEST_P(Messages, AreReceivedLaterThanTheReceivesAreStarted) {
  run_ranks(GetParam(), 2, [](World& world) {
    Communicator& everyone = world.everyone();
    const auto content = [](int64_t from, uint64_t number) {
      return make_data(1000, DataType::byte, 10 * static_cast<uint64_t>(from) + number);
    };
    const int64_t other = 1 - world.rank();
    std::array<Bytes, 2> sent, received;
    std::vector<Work> receives, sends;
    for (Bytes& one : received) {
      one = Bytes(1000);
      receives.push_back(everyone.start_receive(one.data(), 1000, DataType::byte, other));
    }
    everyone.barrier();
    for (uint64_t i = 0; i < sent.size(); ++i) {
      sent.at(i) = content(world.rank(), i);
      sends.push_back(everyone.start_send(sent.at(i).data(), 1000, DataType::byte, other));
    }
    for (uint64_t i = 0; i < receives.size(); ++i) {
      receives[i].wait();
      receives[i].wait();  // does nothing
      EXPECT_TRUE(receives[i].done());
      EXPECT_TRUE(received.at(i) == content(other, i)) << "message " << i;
    }
    for (const Work& send : sends) send.wait();
  });
}

INSTANTIATE_TEST_SUITE_P(worlds, Groups, testing::ValuesIn(world_kinds), name_of_kind);
INSTANTIATE_TEST_SUITE_P(worlds, Asynchronous, testing::ValuesIn(world_kinds), name_of_kind);
INSTANTIATE_TEST_SUITE_P(worlds, Messages, testing::ValuesIn(world_kinds), name_of_kind);

class Stress : public Collectives {};

TEST_P(Stress, RandomOperationsInOverlappingGroupsGiveWhatTheyShould) {
  for (uint64_t seed = 1; seed <= 3; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    run([&](World& world) { EXPECT_EQ(run_random_operations(world, seed, 150), ""); });
  }
}

INSTANTIATE_TEST_SUITE_P(ranks, Stress, testing::Combine(testing::ValuesIn(world_kinds), testing::Values(2, 3, 4, 7)),
                         name_of_case);

}  // namespace
}  // namespace copus
