// Tests a world over NCCL without failures. nccl_failure_test.cpp tests failures.
#include "copus/comm/gpu/nccl_world.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <numeric>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <thread>

#include "copus/base/error.h"
#include "copus/comm/testing/nccl_test_support.h"

namespace copus {
namespace {

using Ranks = std::vector<int64_t>;

const Ranks odd_order = {3, 0, 2};  // of four ranks

int64_t sum_of(const std::vector<int64_t>& counts) { return std::accumulate(counts.begin(), counts.end(), int64_t{0}); }

Bytes part_of(const Bytes& whole, const std::vector<int64_t>& counts, int64_t member, DataType type) {
  const int64_t begin = std::accumulate(counts.begin(), counts.begin() + member, int64_t{0});
  return slice(whole, begin * size_of(type), counts[member] * size_of(type));
}

// Runs `body` in the group of all four ranks, and in a group of three of them in another order.
void run_in_groups(const std::function<void(NcclRank&, Communicator&)>& body) {
  run_over_nccl(4, [&](NcclRank& rank) {
    const std::vector<Ranks> groups = {{0, 1, 2, 3}, odd_order};
    rank.world.require({{.ranks = groups[0], .exchanges = true}, {.ranks = groups[1], .exchanges = true}});
    for (const Ranks& group : groups) {
      if (std::find(group.begin(), group.end(), rank.rank()) != group.end()) body(rank, rank.world.group(group));
    }
  });
}

TEST(NcclWorld, AllReduceAddsUpAllTypes) {
  run_in_groups([](NcclRank& rank, Communicator& group) {
    for (const DataType type : all_types) {
      for (const Reduction reduction : all_reductions) {
        for (const int64_t count : {1, 37}) {
          const std::vector<Bytes> inputs = make_inputs(group.size(), count, type, 1);
          const DeviceBytes data(rank, inputs[group.rank()]);
          group.all_reduce(data.data(), count, type, reduction);
          EXPECT_EQ(data.read(), reduce_reference(inputs, type, reduction));
        }
      }
    }
  });
}

TEST(NcclWorld, ReduceScatterAndAllGatherTakeAnyCountsInPlaceOrNot) {
  run_in_groups([](NcclRank& rank, Communicator& group) {
    std::mt19937_64 random(7);
    for (int64_t round = 0; round < 12; ++round) {
      std::vector<int64_t> counts(group.size(), 5);
      if (round % 3 == 1) {
        for (int64_t& count : counts) count = static_cast<int64_t>(random() % 9);
      } else if (round % 3 == 2) {
        counts.back() = 0;
      }
      const bool in_place = random() % 2 == 0;
      const DataType type = all_types[random() % std::size(all_types)];
      const std::vector<Bytes> inputs = make_inputs(group.size(), sum_of(counts), type, 2);
      const Bytes sums = reduce_reference(inputs, type, Reduction::sum);
      const Bytes expected = part_of(sums, counts, group.rank(), type);
      const int64_t begin = std::accumulate(counts.begin(), counts.begin() + group.rank(), int64_t{0}) * size_of(type);

      const DeviceBytes input(rank, inputs[group.rank()]);
      const DeviceBytes output(rank, Bytes(expected.size()));
      std::byte* const part = in_place ? input.data() + begin : output.data();
      group.reduce_scatter(input.data(), part, counts, type);
      EXPECT_EQ(in_place ? part_of(input.read(), counts, group.rank(), type) : output.read(), expected);

      const DeviceBytes gathered(rank, Bytes(sums.size()));
      if (in_place) {
        rank.device.copy(gathered.data() + begin, part, static_cast<int64_t>(expected.size()),
                         rank.device.current_stream());
      }
      group.all_gather(in_place ? gathered.data() + begin : part, gathered.data(), counts, type);
      EXPECT_EQ(gathered.read(), sums);
    }
  });
}

TEST(NcclWorld, ReduceScatterTakesTheMaximumOfUnequalPartsToo) {
  run_in_groups([](NcclRank& rank, Communicator& group) {
    std::vector<int64_t> counts(group.size());
    std::iota(counts.begin(), counts.end(), 1);
    const DataType type = DataType::float32;
    const std::vector<Bytes> inputs = make_inputs(group.size(), sum_of(counts), type, 3);
    const Bytes expected = part_of(reduce_reference(inputs, type, Reduction::maximum), counts, group.rank(), type);
    const DeviceBytes input(rank, inputs[group.rank()]), output(rank, Bytes(expected.size()));
    group.start_reduce_scatter(input.data(), output.data(), counts, type, Reduction::maximum).wait();
    EXPECT_EQ(output.read(), expected);
  });
}

TEST(NcclWorld, BroadcastsFromEveryMember) {
  run_in_groups([](NcclRank& rank, Communicator& group) {
    for (int64_t root = 0; root < group.size(); ++root) {
      const std::vector<Bytes> inputs = make_inputs(group.size(), 11, DataType::bfloat16, 4);
      const DeviceBytes data(rank, inputs[group.rank()]);
      group.broadcast(data.data(), 11, DataType::bfloat16, root);
      EXPECT_EQ(data.read(), inputs[root]);
    }
  });
}

// Between every pair of members or none, with messages of any size, and with members that have no messages.
TEST(NcclWorld, ExchangesMessagesBetweenAnyMembers) {
  run_in_groups([](NcclRank& rank, Communicator& group) {
    std::mt19937_64 random(static_cast<uint64_t>(group.size()));
    for (int64_t round = 0; round < 8; ++round) {
      std::vector<DeviceBytes> buffers;
      std::vector<Communicator::Message> outgoing, incoming;
      std::vector<std::pair<size_t, Bytes>> expected;
      for (int64_t from = 0; from < group.size(); ++from) {
        for (int64_t to = 0; to < group.size(); ++to) {
          const auto bytes = static_cast<int64_t>(random() % 50);
          if (from == to || random() % 2 == 0) continue;
          const Bytes content = make_data(bytes, DataType::byte, random());
          if (from == group.rank()) {
            outgoing.push_back({to, buffers.emplace_back(rank, content).data(), bytes});
          } else if (to == group.rank()) {
            incoming.push_back({from, buffers.emplace_back(rank, Bytes(content.size())).data(), bytes});
            expected.emplace_back(buffers.size() - 1, content);
          }
        }
      }
      group.exchange(outgoing, incoming);
      for (const auto& [buffer, content] : expected) EXPECT_EQ(buffers[buffer].read(), content);
    }
  });
}

TEST(NcclWorld, HostMemoryGoesTheWaysOfTheHost) {
  MockNccl nccl;
  run_over_nccl(3, nccl, [](NcclRank& rank) {
    Communicator& everyone = rank.world.everyone();  // no groups are prepared, and none need be
    int64_t value = rank.rank() + 1;
    everyone.all_reduce(&value, 1, DataType::int64);
    EXPECT_EQ(value, 6);
    std::vector<int64_t> all(3);
    const std::vector<int64_t> counts(3, 1);
    everyone.all_gather(&value, all.data(), counts, DataType::int64);
    EXPECT_EQ(all, (std::vector<int64_t>{6, 6, 6}));
    const int64_t next = (rank.rank() + 1) % 3, previous = (rank.rank() + 2) % 3;
    int64_t own = rank.rank(), received = -1;
    std::vector<Communicator::Message> outgoing = {{next, &own, sizeof own}}, incoming = {{previous, &received, 8}};
    everyone.exchange(outgoing, incoming);
    EXPECT_EQ(received, previous);
    const Work work = everyone.start_send(&own, 1, DataType::int64, next);
    everyone.receive(&received, 1, DataType::int64, previous);
    work.wait();
    everyone.broadcast(&value, 1, DataType::int64, 1);
    everyone.barrier();
  });
  EXPECT_EQ(nccl.begun(), 0);
  EXPECT_EQ(nccl.mistakes(), std::vector<std::string>{});
}

TEST(NcclWorld, AGroupOfOneNeedsNoLibrary) {
  MockNccl nccl;
  run_over_nccl(2, nccl, [](NcclRank& rank) {
    rank.world.require({{.ranks = {0}, .messages = GroupUse::Messages::line}, {.ranks = {1}}});
    Communicator& alone = rank.world.group({rank.rank()});
    const Bytes values = make_data(6, DataType::float32, 5);
    const DeviceBytes input(rank, values), output(rank, Bytes(values.size()));
    const std::vector<int64_t> counts = {6};
    alone.all_reduce(input.data(), 6, DataType::float32);
    alone.broadcast(input.data(), 6, DataType::float32, 0);
    alone.reduce_scatter(input.data(), output.data(), counts, DataType::float32);
    EXPECT_EQ(output.read(), values);
    alone.all_gather(output.data(), input.data(), counts, DataType::float32);
    alone.all_gather(input.data(), input.data(), counts, DataType::float32);
    EXPECT_EQ(input.read(), values);
  });
  EXPECT_EQ(nccl.begun(), 0);
}

// A kernel before the operation writes the operation's input, but only when the test releases the kernel. A kernel
// after the wait reads the operation's result. The host waits for neither kernel.
TEST(NcclWorld, OperationsComeAfterAndBeforeWhatTheCurrentStreamHolds) {
  if (uses_real_nccl()) GTEST_SKIP() << needs_the_mock;
  run_over_nccl(2, [](NcclRank& rank) {
    rank.world.require({{.ranks = {0, 1}}});
    Communicator& everyone = rank.world.everyone();
    const DeviceBytes data(rank, Bytes(sizeof(float)));
    float* const on_host = rank.fake().on_host<float>(data.data());
    std::atomic<bool> may_write = false, has_read = false;
    rank.launch([&] {
      while (!may_write) std::this_thread::yield();
      *on_host = 3;
    });
    everyone.barrier();
    const int64_t begun = rank.nccl.begun();
    everyone.barrier();
    const Work work = everyone.start_all_reduce(data.data(), 1, DataType::float32, Reduction::sum);
    for (int64_t poll = 0; poll < 500; ++poll) {
      EXPECT_FALSE(work.done());
      std::this_thread::yield();
    }
    EXPECT_EQ(rank.nccl.begun(), begun);  // on neither rank
    everyone.barrier();
    work.wait();
    float seen = 0;
    rank.launch([&] {
      seen = *on_host;
      has_read = true;
    });
    if (rank.rank() == 0) {  // rank 1 has not written yet
      may_write = true;
      for (int64_t poll = 0; poll < 500; ++poll) {
        EXPECT_FALSE(has_read);
        std::this_thread::yield();
      }
    }
    everyone.barrier();
    may_write = true;
    rank.device.synchronize(rank.device.current_stream());
    EXPECT_EQ(seen, 6);
    while (!work.done()) std::this_thread::yield();
  });
}

// A device that runs operations in the order of issue, with room for the kernels of two messages.
FakeDeviceRuntime::Options narrow_device() { return {.hardware_queues = 1, .thread_blocks = 16}; }

// The steady state of 1F1B: neighbours send to each other before either receives. NCCL blocks a communicator until its
// message is received. If a device has few hardware queues, this blocks all its later work too.
TEST(NcclWorld, ThePipelineOfOneForwardOneBackwardNeedsOneQueueOfTheDevice) {
  constexpr int64_t stages = 4, micro_batches = 6;
  run_over_nccl(
      stages,
      [&](NcclRank& rank) {
        rank.world.require(
            {{.ranks = {0, 1, 2, 3}, .collectives = false, .messages = GroupUse::Messages::line}, {{0, 1}}, {{2, 3}}});
        Communicator& pipeline = rank.world.everyone();
        const int64_t here = rank.rank(), warm_up = stages - 1 - here;
        Communicator& pair = rank.world.group(here < 2 ? Ranks{0, 1} : Ranks{2, 3});
        std::vector<Work> sends;
        std::vector<DeviceBytes> sent;
        const auto content = [&](int64_t micro_batch, int64_t from, int64_t to) {
          return make_data(20, DataType::bfloat16, static_cast<uint64_t>(100 * micro_batch + 10 * from + to));
        };
        const auto send = [&](int64_t micro_batch, int64_t to, bool with_next_receive) {
          if (to < 0 || to == stages) return;
          sent.emplace_back(rank, content(micro_batch, here, to));
          sends.push_back(pipeline.start_send(sent.back().data(), 20, DataType::bfloat16, to,
                                              {.with_next_receive = with_next_receive}));
        };
        const auto receive = [&](int64_t micro_batch, int64_t from) {
          if (from < 0 || from == stages) return;
          const DeviceBytes received(rank, Bytes(40));
          pipeline.receive(received.data(), 20, DataType::bfloat16, from);
          EXPECT_EQ(received.read(), content(micro_batch, from, here));
        };
        for (int64_t m = 0; m < std::min<int64_t>(warm_up, micro_batches); ++m) {
          receive(m, here - 1);
          send(m, here + 1, false);
        }
        receive(warm_up, here - 1);
        for (int64_t m = warm_up; m < micro_batches; ++m) {
          send(m, here + 1, true);
          receive(m - warm_up, here + 1);
          const bool is_last = m + 1 == micro_batches;
          send(m - warm_up, here - 1, !is_last);
          if (!is_last) receive(m + 1, here - 1);
        }
        for (int64_t m = micro_batches - warm_up; m < micro_batches; ++m) {
          receive(m, here + 1);
          send(m, here - 1, false);
        }
        for (const Work& one : sends) one.wait();
        // Collectives run next to messages.
        const std::vector<Bytes> inputs = make_inputs(2, 3, DataType::float64, 9);
        const DeviceBytes data(rank, inputs[pair.rank()]);
        pair.all_reduce(data.data(), 3, DataType::float64);
        EXPECT_EQ(data.read(), reduce_reference(inputs, DataType::float64, Reduction::sum));
        rank.device.synchronize(rank.device.current_stream());
      },
      narrow_device());
}

// In an interleaved pipeline, every rank sends to the next rank before it receives from the previous one. In a ring of
// two ranks, the two members are connected by two links.
TEST(NcclWorld, ARingThatSendsBeforeItReceivesNeedsOneQueueOfTheDevice) {
  for (const int64_t size : {2, 3, 4}) {
    run_over_nccl(
        size,
        [&](NcclRank& rank) {
          const Ranks all = rank.world.everyone().ranks();
          rank.world.require({{.ranks = all, .collectives = false, .messages = GroupUse::Messages::ring}});
          Communicator& ring = rank.world.everyone();
          const int64_t next = (rank.rank() + 1) % size, previous = (rank.rank() + size - 1) % size;
          for (int64_t turn = 0; turn < 5; ++turn) {
            const auto content = [&](int64_t from) {
              return make_data(20, DataType::bfloat16, static_cast<uint64_t>(100 * turn + from));
            };
            const DeviceBytes sent(rank, content(rank.rank())), received(rank, Bytes(40));
            const Work send = ring.start_send(sent.data(), 20, DataType::bfloat16, next, {.link = rank.rank()});
            ring.receive(received.data(), 20, DataType::bfloat16, previous, {.link = previous});
            EXPECT_EQ(received.read(), content(previous));
            send.wait();
            rank.device.synchronize(rank.device.current_stream());
          }
        },
        narrow_device());
  }
}

TEST(NcclWorld, AMessageArrivesBeforeItsStartedReceiveIsWaitedFor) {
  run_over_nccl(2, [](NcclRank& rank) {
    rank.world.require({{.ranks = {0, 1}, .collectives = false, .messages = GroupUse::Messages::line}});
    Communicator& pair = rank.world.everyone();
    const Bytes content = make_data(20, DataType::bfloat16, 3);
    const DeviceBytes data(rank, rank.rank() == 0 ? content : Bytes(40));
    if (rank.rank() == 0) {
      pair.start_send(data.data(), 20, DataType::bfloat16, 1).wait();
      rank.device.synchronize(rank.device.current_stream());
      pair.barrier();
    } else {
      const Work receive = pair.start_receive(data.data(), 20, DataType::bfloat16, 0);
      pair.barrier();
      receive.wait();
      EXPECT_EQ(data.read(), content);
    }
  });
}

// A layout of eight ranks with d, t and p, with groups as train/step/rank_groups.h lists them.
std::vector<GroupUse> layout(int64_t data, int64_t tensor, int64_t pipeline) {
  std::vector<GroupUse> groups = {{.ranks = {0, 1, 2, 3, 4, 5, 6, 7}, .collectives = false, .exchanges = true}};
  const auto rank = [&](int64_t p, int64_t d, int64_t t) { return (p * data + d) * tensor + t; };
  const auto add = [&](int64_t count, bool messages, const auto& member) {
    GroupUse group{.ranks = {},
                   .collectives = !messages,
                   .messages = messages ? GroupUse::Messages::ring : GroupUse::Messages::none};
    for (int64_t i = 0; i < count; ++i) group.ranks.push_back(member(i));
    groups.push_back(group);
  };
  for (int64_t p = 0; p < pipeline; ++p) {
    for (int64_t d = 0; d < data; ++d) add(tensor, false, [&](int64_t t) { return rank(p, d, t); });
    for (int64_t t = 0; t < tensor; ++t) add(data, false, [&](int64_t d) { return rank(p, d, t); });
  }
  for (int64_t d = 0; d < data; ++d) {
    for (int64_t t = 0; t < tensor; ++t) add(pipeline, true, [&](int64_t p) { return rank(p, d, t); });
  }
  return groups;
}

// With ZeRO-1 and ZeRO-2, the update starts the all-gathers of all weights, which overlap with the next step's forward
// pass.
TEST(NcclWorld, AStepBeginsBesideTheGathersOfTheUpdateBeforeIt) {
  constexpr int64_t buckets = 3, count = 6;
  run_over_nccl(
      8,
      [&](NcclRank& rank) {
        rank.world.require(layout(2, 2, 2));
        const int64_t here = rank.rank(), stage = here / 4, tensor = here % 2;
        Communicator& shards = rank.world.group({4 * stage + tensor, 4 * stage + 2 + tensor});
        Communicator& neighbours = rank.world.group({here - tensor, here - tensor + 1});
        Communicator& pipeline = rank.world.group({here % 4, 4 + here % 4});
        for (uint64_t step = 0; step < 3; ++step) {
          const std::vector<Bytes> sums = make_inputs(2, count, DataType::float64, 10 + step);
          const Bytes activation = make_data(count, DataType::float64, 20 + step);
          DeviceBytes data(rank, sums[neighbours.rank()]);
          const DeviceBytes message(rank, stage == 0 ? activation : Bytes(activation.size()));
          std::vector<DeviceBytes> shares, weights;
          std::vector<Work> gathers;
          for (int64_t bucket = 0; bucket < buckets; ++bucket) {
            shares.emplace_back(rank, make_data(count, DataType::float64, step + shards.rank()));
            weights.emplace_back(rank, Bytes(2 * 8 * count));
          }
          for (int64_t bucket = 0; bucket < buckets; ++bucket) {
            gathers.push_back(shards.start_all_gather(shares[bucket].data(), weights[bucket].data(),
                                                      std::vector<int64_t>{count, count}, DataType::float64));
          }
          if (stage == 1) pipeline.receive(message.data(), count, DataType::float64, 0);
          for (const Work& gather : gathers) {
            gather.wait();
            data.write(sums[neighbours.rank()]);
            neighbours.all_reduce(data.data(), count, DataType::float64);
          }
          if (stage == 0) pipeline.start_send(message.data(), count, DataType::float64, 1).wait();
          Bytes whole = make_data(count, DataType::float64, step);
          const Bytes second = make_data(count, DataType::float64, step + 1);
          whole.insert(whole.end(), second.begin(), second.end());
          for (const DeviceBytes& weight : weights) EXPECT_EQ(weight.read(), whole);
          EXPECT_EQ(data.read(), reduce_reference(sums, DataType::float64, Reduction::sum));
          EXPECT_EQ(message.read(), activation);
        }
      },
      narrow_device());
}

// Uses every group of this rank as a step does, and runs the exchanges that take place between steps.
void use_all(NcclRank& rank, const std::vector<GroupUse>& groups) {
  std::set<std::pair<Ranks, bool>> used;
  for (const GroupUse& use : groups) {
    const auto place = std::find(use.ranks.begin(), use.ranks.end(), rank.rank());
    if (use.ranks.size() < 2 || place == use.ranks.end()) continue;
    if (!used.insert({use.ranks, use.collectives}).second) continue;
    Communicator& group = rank.world.group(use.ranks);
    const std::vector<Bytes> inputs = make_inputs(group.size(), 5, DataType::int64, 6);
    const DeviceBytes own(rank, slice(inputs[group.rank()], 0, 16)), received(rank, Bytes(16));
    const int64_t next = (group.rank() + 1) % group.size(), previous = (group.rank() + group.size() - 1) % group.size();
    if (use.collectives) {
      const DeviceBytes data(rank, inputs[group.rank()]);
      group.all_reduce(data.data(), 5, DataType::int64);
      EXPECT_EQ(data.read(), reduce_reference(inputs, DataType::int64, Reduction::sum));
      const std::vector<int64_t> counts(use.ranks.size(), 2);
      const DeviceBytes all(rank, Bytes(use.ranks.size() * 16));
      group.all_gather(own.data(), all.data(), counts, DataType::int64);
    }
    if (use.messages == GroupUse::Messages::none) continue;
    const Work send = group.start_send(own.data(), 2, DataType::int64, next, {.with_next_receive = true});
    group.receive(received.data(), 2, DataType::int64, previous);
    EXPECT_EQ(received.read(), slice(inputs[previous], 0, 16));
    send.wait();
    rank.device.synchronize(rank.device.current_stream());
  }
}

TEST(NcclWorld, ComesBackToLayoutsWithFewCommunicators) {
  if (uses_real_nccl()) GTEST_SKIP() << needs_the_mock;
  const std::vector<std::vector<GroupUse>> layouts = {layout(8, 1, 1), layout(2, 2, 2), layout(1, 2, 4),
                                                      layout(1, 1, 8), layout(4, 2, 1), layout(2, 1, 4)};
  constexpr int64_t kept = 8;  // not counting the parent
  MockNccl nccl;
  std::vector<size_t> splits;
  run_over_nccl(
      8, nccl,
      [&](NcclRank& rank) {
        std::mt19937_64 order(11), own_order(static_cast<uint64_t>(rank.rank()));
        for (int64_t turn = 0; turn < 14; ++turn) {
          const std::vector<GroupUse>& groups_in_order = layouts[order() % layouts.size()];
          std::vector<GroupUse> groups = groups_in_order;  // the order of the list does not matter
          std::shuffle(groups.begin(), groups.end(), own_order);
          rank.world.require(groups);
          rank.world.everyone().barrier();
          const int64_t connections = rank.nccl.connections();
          if (rank.rank() == 0) splits.push_back(rank.nccl.splits().size());
          rank.world.everyone().barrier();
          use_all(rank, groups_in_order);
          rank.world.everyone().barrier();
          EXPECT_EQ(rank.nccl.connections(), connections) << "a step had to connect";
          const int64_t communicators = rank.nccl.communicators(rank.rank());
          EXPECT_LE(communicators, kept + 1);  // plus the parent
          EXPECT_EQ(rank.world.communicator_bytes(), communicators * MockNccl::communicator_bytes);
        }
      },
      patient_seconds, kept * MockNccl::communicator_bytes);
  EXPECT_EQ(nccl.mistakes(), std::vector<std::string>{});
  for (int64_t rank = 0; rank < 8; ++rank) EXPECT_EQ(nccl.communicators(rank), 0) << "rank " << rank;
  // In some rounds all communicators were still open; in others some had been closed and had to be opened again.
  EXPECT_NE(std::adjacent_find(splits.begin(), splits.end()), splits.end());
  std::vector<std::vector<std::vector<int64_t>>> distinct = nccl.splits();
  std::sort(distinct.begin(), distinct.end());
  EXPECT_NE(std::adjacent_find(distinct.begin(), distinct.end()), distinct.end());
}

// NCCL chooses an algorithm by the vector's size, and each algorithm needs its own connections.
TEST(NcclWorld, NoCollectiveOfAStepHasToConnect) {
  if (uses_real_nccl()) GTEST_SKIP() << needs_the_mock;
  constexpr int64_t largest = 3 << 20;
  run_over_nccl(3, [](NcclRank& rank) {
    rank.world.require({{.ranks = {0, 1, 2}, .collective_bytes = largest / 4}});
    rank.world.require({{.ranks = {0, 1, 2}, .collective_bytes = largest}});  // a larger micro-batch
    Communicator& everyone = rank.world.everyone();
    everyone.barrier();
    const int64_t connections = rank.nccl.connections();
    everyone.barrier();
    const DeviceBytes data(rank, Bytes(largest));
    for (const int64_t bytes : {int64_t{12}, int64_t{6000}, int64_t{300000}, largest}) {
      const int64_t count = bytes / 4;
      everyone.all_reduce(data.data(), count, DataType::float32);
      everyone.broadcast(data.data(), count, DataType::float32, 1);
      for (const std::vector<int64_t>& counts :
           {std::vector<int64_t>{count / 3, count / 3, count / 3}, {count / 3 + 1, count / 3, count / 3 - 1}}) {
        std::byte* const own =
            data.data() + 4 * std::accumulate(counts.begin(), counts.begin() + everyone.rank(), int64_t{0});
        everyone.reduce_scatter(data.data(), own, counts, DataType::float32);
        everyone.all_gather(own, data.data(), counts, DataType::float32);
      }
    }
    rank.device.synchronize(rank.device.current_stream());
    everyone.barrier();
    EXPECT_EQ(rank.nccl.connections(), connections);
    everyone.barrier();
  });
}

// The device lacks memory for new communicators. Communicators that were open must stay open.
TEST(NcclWorld, AFullDeviceIsAnAnswerAndNotAnEnd) {
  if (uses_real_nccl()) GTEST_SKIP() << needs_the_mock;
  run_over_nccl(3,
                [](NcclRank& rank) {
                  rank.world.require({{.ranks = {0, 1, 2}}});
                  std::shared_ptr<void> rest;
                  if (rank.rank() == 1)
                    rest = rank.device.allocate(rank.device.memory().free_bytes - MockNccl::communicator_bytes / 2);
                  const std::vector<GroupUse> more = {{.ranks = {0, 1, 2}}, {.ranks = {1, 2}}};
                  const std::optional<std::string> lack = rank.world.prepare(more);
                  ASSERT_TRUE(lack.has_value());
                  EXPECT_THAT(*lack,
                              testing::AllOf(testing::HasSubstr("no memory"), testing::HasSubstr("1 connection")));
                  EXPECT_THROW(rank.world.require(more), UserError);
                  const DeviceBytes data(rank, Bytes(8));
                  rank.world.everyone().all_reduce(data.data(), 1, DataType::int64);
                  rank.device.synchronize(rank.device.current_stream());
                  rest.reset();
                  EXPECT_EQ(rank.world.prepare(more), std::nullopt);
                  if (rank.rank() > 0) rank.world.group({1, 2}).all_reduce(data.data(), 1, DataType::int64);
                  rank.device.synchronize(rank.device.current_stream());
                },
                {.memory_bytes = int64_t{1} << 20});
}

// Communicators kept from earlier layouts are closed if a new layout lacks their memory.
TEST(NcclWorld, WhatIsKeptInVainMakesRoom) {
  if (uses_real_nccl()) GTEST_SKIP() << needs_the_mock;
  constexpr int64_t rest = MockNccl::communicator_bytes / 2;
  MockNccl nccl;
  const auto body = [](NcclRank& rank) {
    const GroupUse all = {.ranks = {0, 1, 2}};
    rank.world.require({all, {.ranks = {0, 1}}});
    rank.world.require({all});
    EXPECT_EQ(rank.nccl.communicators(rank.rank()), rank.rank() == 2 ? 2 : 3);  // including the parent
    const std::shared_ptr<void> taken = rank.device.allocate(rank.device.memory().free_bytes - rest);
    EXPECT_EQ(rank.world.prepare({all, {.ranks = {1, 0}}}), std::nullopt);
    EXPECT_NE(rank.world.prepare({all, {.ranks = {1, 0}}, {.ranks = {2, 1}}}), std::nullopt);
    const DeviceBytes data(rank, Bytes(8));
    rank.world.everyone().all_reduce(data.data(), 1, DataType::int64);  // communicators in use have stayed
    if (rank.rank() < 2) rank.world.group({1, 0}).all_reduce(data.data(), 1, DataType::int64);
    rank.device.synchronize(rank.device.current_stream());
  };
  run_over_nccl(3, nccl, body, patient_seconds, kept_nccl_bytes, {.memory_bytes = int64_t{1} << 20});
  EXPECT_EQ(nccl.mistakes(), std::vector<std::string>{});
}

TEST(NcclWorld, MeasuresWhatCommunicatorsTake) {
  if (uses_real_nccl()) GTEST_SKIP() << needs_the_mock;
  run_over_nccl(4, [](NcclRank& rank) {
    EXPECT_EQ(rank.world.communicator_costs(), CommunicatorCosts{});
    rank.world.require({{.ranks = {0, 1, 2, 3}}, {.ranks = {0, 1}, .messages = GroupUse::Messages::line}});
    const CommunicatorCosts costs = rank.world.communicator_costs();  // of ranks that have some, on all ranks
    EXPECT_EQ(costs.collective_bytes, MockNccl::communicator_bytes);
    EXPECT_EQ(costs.message_bytes, MockNccl::communicator_bytes);
    EXPECT_EQ(costs.exchange_bytes, 0);
    EXPECT_GT(costs.split_seconds, 0);
    rank.world.require({{.ranks = {0, 1, 2, 3}, .exchanges = true}});
    EXPECT_EQ(rank.world.communicator_costs().exchange_bytes, MockNccl::communicator_bytes);
    EXPECT_EQ(rank.world.communicator_costs().collective_bytes, MockNccl::communicator_bytes);
  });
}

TEST(NcclWorld, CommunicatorsHaveTheOrderOfTheirGroup) {
  if (uses_real_nccl()) GTEST_SKIP() << needs_the_mock;
  MockNccl nccl;
  run_over_nccl(4, nccl, [](NcclRank& rank) { rank.world.require({{.ranks = odd_order}, {.ranks = {1, 0}}}); });
  EXPECT_EQ(nccl.splits(), (std::vector<std::vector<std::vector<int64_t>>>{{odd_order}, {{1, 0}}}));
}

TEST(NcclWorld, AGroupThatWasNotPreparedIsABug) {
  run_over_nccl(2, [](NcclRank& rank) {
    const DeviceBytes data(rank, Bytes(8));
    Communicator& everyone = rank.world.everyone();
    const auto message_of = [](const std::function<void()>& body) -> std::string {
      try {
        body();
      } catch (const InternalError& error) {
        return error.what();
      }
      return "nothing";
    };
    EXPECT_THAT(message_of([&] { everyone.all_reduce(data.data(), 1, DataType::int64); }),
                testing::HasSubstr("World::prepare was not asked for the group 0 1"));
    rank.world.require({{.ranks = {0, 1}}});
    everyone.all_reduce(data.data(), 1, DataType::int64);
    EXPECT_THAT(message_of([&] { everyone.send(data.data(), 1, DataType::int64, 1 - rank.rank()); }),
                testing::HasSubstr("prepare was not asked for the messages between 0 and 1 in group 0 1"));
    const std::vector<Communicator::Message> outgoing = {{1 - rank.rank(), data.data(), 8}};
    EXPECT_THAT(message_of([&] { everyone.exchange(outgoing, {}); }),
                testing::HasSubstr("prepare was not asked for the exchanges of 0 1"));
    EXPECT_THAT(message_of([&] { everyone.receive(data.data(), 1, DataType::int64, 1 - rank.rank()); }),
                testing::HasSubstr("was not asked for"));
    rank.device.synchronize(rank.device.current_stream());
  });
}

TEST(NcclWorld, GroupsThatAreNoneAreRefused) {
  run_over_nccl(2, [](NcclRank& rank) {
    EXPECT_THROW(rank.world.require({{.ranks = {0, 0}}}), InternalError);
    EXPECT_THROW(rank.world.require({{.ranks = {0, 2}}}), InternalError);
    EXPECT_THROW(rank.world.require({{.ranks = {}}}), InternalError);
  });
}

TEST(NcclWorld, NamesItsVersionAndSettings) {
  if (uses_real_nccl()) GTEST_SKIP() << needs_the_mock;
  run_over_nccl(2, [](NcclRank& rank) {
    EXPECT_THAT(rank.world.device_connection(), testing::AllOf(testing::StartsWith("GPUs by NCCL 2.28.9 ("),
                                                               testing::HasSubstr("NCCL_LAUNCH_ORDER_IMPLICIT=1")));
  });
}

TEST(NcclWorld, RefusesALibraryWithoutSplits) {
  if (uses_real_nccl()) GTEST_SKIP() << needs_the_mock;
  MockNccl nccl;
  nccl.set_version(21703);
  EXPECT_THROW(run_over_nccl(2, nccl, [](NcclRank&) {}), UserError);
}

}  // namespace
}  // namespace copus
