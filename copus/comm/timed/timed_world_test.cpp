#include "copus/comm/timed/timed_world.h"

#include <gtest/gtest.h>

#include <array>
#include <cstring>
#include <ctime>
#include <deque>
#include <functional>
#include <limits>
#include <random>
#include <stdexcept>

#include "copus/comm/shared_memory/single_rank_world.h"
#include "copus/comm/testing/borrowed_world.h"
#include "copus/comm/testing/rank_threads.h"
#include "copus/performance/link_cost.h"
#include "copus/performance/testing/schedule_timing.h"
#include "copus/schedule/schedule.h"

namespace copus {
namespace {

// Two ranks per node; charge(x) means x seconds of computing. A message of 8 bytes takes 2 s within a node and 12 s
// between nodes.
const ClusterDescription cluster{
    .ranks_per_node = 2, .within_node = {1, 8}, .between_nodes = {4, 1}, .flops_per_second = 1};

void run_timed(int64_t size, const ClusterDescription& links, ClockKind clock,
               const std::function<void(World& timed, World& inner)>& body) {
  run_ranks_as_threads(size, [&](World& inner) {
    const auto timed = with_links(std::make_unique<BorrowedWorld>(inner), links, clock);
    body(*timed, inner);
  });
}

void run_virtual(int64_t size, const std::function<void(World&)>& body) {
  run_timed(size, cluster, ClockKind::virtual_time, [&](World& world, World&) { body(world); });
}

TEST(VirtualClock, ACollectiveBeginsWithItsLastMember) {
  run_virtual(2, [](World& world) {
    std::array<float, 4> values = {1, 2, 3, 4};
    world.clock().charge(world.rank() == 0 ? 3 : 5);
    world.everyone().all_reduce(values.data(), 4, DataType::float32);  // two rounds of 1 s and 8 bytes
    EXPECT_EQ(values, (std::array<float, 4>{2, 4, 6, 8}));
    EXPECT_EQ(world.clock().now(), 5 + 4);
    world.clock().charge(world.rank() == 0 ? 2 : 1);
    world.everyone().barrier();
    EXPECT_EQ(world.clock().now(), 11 + 1);
  });
}

TEST(VirtualClock, EveryOperationTakesItsSeconds) {
  run_virtual(2, [](World& world) {
    Communicator& group = world.everyone();
    const std::array<int64_t, 2> counts = {1, 3};
    std::array<int64_t, 4> all = {};
    std::array<int64_t, 3> part = {};
    const auto seconds = [&](const std::function<void()>& operation) {
      group.barrier();
      const double begin = world.clock().now();
      operation();
      return world.clock().now() - begin;
    };
    const Link& link = cluster.within_node;
    EXPECT_EQ(seconds([&] { group.all_reduce(all.data(), 4, DataType::float64); }), all_reduce_seconds(link, 2, 32));
    EXPECT_EQ(seconds([&] { group.all_reduce(all.data(), 4, DataType::int64); }),
              small_all_reduce_seconds(link, 2, 32));
    EXPECT_EQ(seconds([&] { group.all_reduce(all.data(), 4, DataType::float64, Reduction::maximum); }),
              small_all_reduce_seconds(link, 2, 32));
    EXPECT_EQ(seconds([&] { group.reduce_scatter(all.data(), part.data(), counts, DataType::int64); }),
              reduce_scatter_seconds(link, 2, 32));
    EXPECT_EQ(seconds([&] { group.all_gather(part.data(), all.data(), counts, DataType::int64); }),
              all_gather_seconds(link, 2, 32));
    EXPECT_EQ(seconds([&] { group.broadcast(all.data(), 4, DataType::int64, 1); }), broadcast_seconds(link, 2, 32));
    EXPECT_EQ(seconds([&] { group.start_all_reduce(all.data(), 4, DataType::int64, Reduction::sum).wait(); }),
              small_all_reduce_seconds(link, 2, 32));
    EXPECT_EQ(seconds([&] {
                group.start_reduce_scatter(all.data(), part.data(), counts, DataType::int64, Reduction::sum).wait();
              }),
              reduce_scatter_seconds(link, 2, 32));
    EXPECT_EQ(seconds([&] { group.start_all_gather(part.data(), all.data(), counts, DataType::int64).wait(); }),
              all_gather_seconds(link, 2, 32));
    EXPECT_EQ(seconds([&] { group.start(Operation::broadcast(all.data(), 4, DataType::int64, 1)).wait(); }),
              broadcast_seconds(link, 2, 32));
    EXPECT_EQ(seconds([&] { group.barrier(); }), barrier_seconds(link, 2));
  });
}

TEST(VirtualClock, CollectivesOverlapWithComputing) {
  run_virtual(2, [](World& world) {
    double value = 1;
    Work work = world.everyone().start_all_reduce(&value, 1, DataType::float64, Reduction::sum);  // until 3
    world.clock().charge(10);
    work.wait();
    EXPECT_EQ(world.clock().now(), 10);

    world.clock().charge(world.rank() == 0 ? 0 : 1);
    work = world.everyone().start_all_reduce(&value, 1, DataType::float64, Reduction::sum);  // from 11
    world.clock().charge(world.rank() == 0 ? 2 : 1);
    work.wait();
    work.wait();  // takes no more time
    EXPECT_EQ(world.clock().now(), 14);
  });
}

TEST(VirtualClock, CollectivesOfAGroupFollowOneAnother) {
  run_virtual(2, [](World& world) {
    std::array<double, 3> values = {1, 2, 3};
    std::array<Work, 3> works;
    for (size_t i = 0; i < values.size(); ++i) {
      works[i] = world.everyone().start_all_reduce(&values[i], 1, DataType::float64, Reduction::sum);
    }
    works[1].wait();
    EXPECT_EQ(world.clock().now(), 6);
    works[0].wait();
    EXPECT_EQ(world.clock().now(), 6);
    world.everyone().barrier();  // after the third
    EXPECT_EQ(world.clock().now(), 9 + 1);
    works[2].wait();
    EXPECT_EQ(world.clock().now(), 10);
  });
}

TEST(VirtualClock, NothingIsDoneBeforeItsTime) {
  run_timed(2, cluster, ClockKind::virtual_time, [](World& world, World& inner) {
    double value = 1;
    const Work work = world.everyone().start_all_reduce(&value, 1, DataType::float64, Reduction::sum);  // until 3
    inner.everyone().barrier();                                                                         // really done
    EXPECT_FALSE(work.done());
    world.clock().charge(2.5);
    EXPECT_FALSE(work.done());
    world.clock().charge(0.5);
    EXPECT_TRUE(work.done());
    EXPECT_EQ(value, 2);
  });
}

TEST(VirtualClock, MessagesFollowOneAnotherAndCostTheirSenderNothing) {
  run_virtual(2, [](World& world) {
    std::array<int64_t, 3> values = {};
    if (world.rank() == 0) {
      values = {10, 20, 30};
      std::vector<Work> works;
      for (const int64_t& value : values) {
        world.clock().charge(1);
        works.push_back(world.everyone().start_send(&value, 1, DataType::int64, 1));
      }
      for (const Work& work : works) work.wait();
      EXPECT_EQ(world.clock().now(), 3);
      world.everyone().receive(values.data(), 1, DataType::int64, 1);  // sent at 9.5, the other way
      EXPECT_EQ(world.clock().now(), 11.5);
    } else {
      const auto receive = [&](int64_t& value) {
        world.everyone().receive(&value, 1, DataType::int64, 0);
        return world.clock().now();
      };
      EXPECT_EQ(receive(values[0]), 3);
      EXPECT_EQ(receive(values[1]), 5);
      world.clock().charge(4.5);
      EXPECT_EQ(receive(values[2]), 9.5);  // it arrived at 7
      EXPECT_EQ(values, (std::array<int64_t, 3>{10, 20, 30}));
      world.everyone().send(values.data(), 1, DataType::int64, 0);
      EXPECT_EQ(world.clock().now(), 9.5);
    }
  });
}

TEST(VirtualClock, NodesAreFarFromEachOther) {
  run_virtual(4, [](World& world) {
    double value = 1;
    Communicator& node = world.group(world.rank() < 2 ? std::vector<int64_t>{0, 1} : std::vector<int64_t>{3, 2});
    node.all_reduce(&value, 1, DataType::float64);
    EXPECT_EQ(world.clock().now(), 2 * (1 + 0.5));
    Communicator& across = world.group(world.rank() % 2 == 0 ? std::vector<int64_t>{0, 2} : std::vector<int64_t>{1, 3});
    across.all_reduce(&value, 1, DataType::float64);
    EXPECT_EQ(world.clock().now(), 3 + 2 * (4 + 4));
    EXPECT_EQ(value, 4);

    if (world.rank() == 1) {
      world.everyone().send(&value, 1, DataType::float64, 0);
      world.everyone().send(&value, 1, DataType::float64, 2);
    } else if (world.rank() != 3) {
      world.everyone().receive(&value, 1, DataType::float64, 1);
      EXPECT_EQ(world.clock().now(), 19 + (world.rank() == 0 ? 2 : 12));
    }
  });
}

TEST(VirtualClock, AGroupOfOneWaitsForNobody) {
  run_virtual(1, [](World& world) {
    double value = 7;
    world.everyone().all_reduce(&value, 1, DataType::float64);
    world.everyone().barrier();
    world.everyone().start_all_reduce(&value, 1, DataType::float64, Reduction::sum).wait();
    EXPECT_EQ(value, 7);
    EXPECT_EQ(world.clock().now(), 0);
  });
}

double thread_seconds() {
  timespec time{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

void compute_for(double seconds) {
  const double end = thread_seconds() + seconds;
  while (thread_seconds() < end) {
  }
}

TEST(VirtualClock, MeasuresItsThreadOutsideCommunication) {
  ClusterDescription measured = cluster;
  measured.flops_per_second = 0;
  run_timed(2, measured, ClockKind::virtual_time, [](World& world, World&) {
    RankClock& clock = world.clock();
    const double thread_begin = thread_seconds();
    const double begin = clock.now();
    compute_for(0.002);
    clock.charge(1e9);  // counts only if computing is modelled
    const double computed = clock.now() - begin;
    EXPECT_GE(computed, 0.002);
    EXPECT_LE(computed, thread_seconds() - thread_begin);

    clock.begin_communication();
    clock.begin_communication();
    clock.end_communication();
    const double waiting = clock.now();
    compute_for(0.002);
    EXPECT_EQ(clock.now(), waiting);
    clock.end_communication();
    compute_for(0.001);
    EXPECT_GE(clock.now(), waiting + 0.001);

    clock.advance_to(100);
    EXPECT_GE(clock.now(), 100);
    clock.advance_to(50);
    EXPECT_GE(clock.now(), 100);
  });
}

TEST(WallClock, MessagesAndCollectivesArriveLate) {
  ClusterDescription slow = cluster;
  slow.within_node = {.latency_seconds = 0.01, .bytes_per_second = 1e9};
  run_timed(2, slow, ClockKind::wall, [](World& world, World& inner) {
    EXPECT_EQ(&world.clock(), &inner.clock());
    Communicator& group = world.everyone();
    double sent = world.clock().now();
    if (world.rank() == 0) {
      group.send(&sent, 1, DataType::float64, 1);
    } else {
      group.receive(&sent, 1, DataType::float64, 0);
      EXPECT_GE(world.clock().now(), sent + 0.01);
    }
    double last = world.clock().now();
    group.all_reduce(&last, 1, DataType::float64, Reduction::maximum);
    EXPECT_GE(world.clock().now(), last + 0.01);
    double sum = last = world.clock().now();
    group.all_reduce(&sum, 1, DataType::float64);
    EXPECT_GE(world.clock().now(), last + 0.02);
  });
}

TEST(RealClock, GivesTheWorldBack) {
  auto world = single_rank_world();
  World* const address = world.get();
  EXPECT_EQ(with_links(std::move(world), cluster, ClockKind::real).get(), address);
}

TEST(TimedWorld, AFailureEndsEveryRank) {
  EXPECT_THROW(run_virtual(3,
                           [](World& world) {
                             if (world.rank() == 1) throw std::domain_error("this rank fails");
                             double value = 0;
                             const Work send = world.everyone().start_send(&value, 1, DataType::float64, 1);
                             double sum = 0;
                             const Work work =
                                 world.everyone().start_all_reduce(&sum, 1, DataType::float64, Reduction::sum);
                             EXPECT_THROW(work.wait(), RankFailure);
                             EXPECT_TRUE(world.health().failure().has_value());
                             world.everyone().receive(&value, 1, DataType::float64, 1);
                           }),
               std::domain_error);
}

// The results of all operations on this rank's random numbers.
std::vector<float> results_of_every_operation(World& world) {
  constexpr int64_t count = 37;
  std::mt19937 random(static_cast<uint32_t>(world.rank()));
  std::normal_distribution<float> normal;
  const auto draw = [&](int64_t size) {
    std::vector<float> values(size);
    for (float& value : values) value = normal(random);
    return values;
  };
  std::vector<float> results;
  const auto keep = [&](const std::vector<float>& values) {
    results.insert(results.end(), values.begin(), values.end());
  };
  Communicator& group = world.everyone();
  const std::vector<int64_t> counts = {5, 0, 30, 2};
  for (const bool asynchronous : {false, true}) {
    auto sum = draw(count), largest = draw(count), whole = draw(count), sent = draw(count), received = draw(count);
    const auto part = draw(counts[world.rank()]);
    std::vector<float> scattered(counts[world.rank()]), gathered(count);
    auto message = draw(count);
    const int64_t next = (world.rank() + 1) % world.size();
    const int64_t previous = (world.rank() + world.size() - 1) % world.size();
    if (asynchronous) {
      const std::vector<Work> works = {
          group.start_all_reduce(sum.data(), count, DataType::float32, Reduction::sum),
          group.start_all_reduce(largest.data(), count, DataType::float32, Reduction::maximum),
          group.start_reduce_scatter(whole.data(), scattered.data(), counts, DataType::float32, Reduction::sum),
          group.start_all_gather(part.data(), gathered.data(), counts, DataType::float32),
          group.start(Operation::broadcast(message.data(), count, DataType::float32, 2))};
      for (const Work& work : works) work.wait();
    } else {
      group.all_reduce(sum.data(), count, DataType::float32);
      group.all_reduce(largest.data(), count, DataType::float32, Reduction::maximum);
      group.reduce_scatter(whole.data(), scattered.data(), counts, DataType::float32);
      group.all_gather(part.data(), gathered.data(), counts, DataType::float32);
      group.broadcast(message.data(), count, DataType::float32, 2);
    }
    const Work work = group.start_send(sent.data(), count, DataType::float32, next);
    group.receive(received.data(), count, DataType::float32, previous);
    work.wait();
    for (const auto& values : {sum, largest, scattered, gathered, message, received}) keep(values);
  }
  return results;
}

TEST(TimedWorld, ResultsAreThoseOfTheWorldBehindIt) {
  for (const auto clock : {ClockKind::virtual_time, ClockKind::wall}) {
    const ClusterDescription fast{
        .ranks_per_node = 2, .within_node = {1e-6, 1e9}, .between_nodes = {1e-6, 1e9}, .flops_per_second = 1};
    run_timed(4, fast, clock, [](World& world, World& inner) {
      const auto expected = results_of_every_operation(inner);
      const auto found = results_of_every_operation(world);
      ASSERT_EQ(found.size(), expected.size());
      EXPECT_EQ(std::memcmp(found.data(), expected.data(), found.size() * sizeof(float)), 0);
    });
  }
}

// A random program of computing, collectives in several groups, and messages.
std::vector<double> times_of_a_random_program() {
  std::vector<double> ends(4);
  run_virtual(4, [&](World& world) {
    std::mt19937 common(7);  // all ranks draw the same program
    std::mt19937 own(static_cast<uint32_t>(world.rank()));
    std::uniform_real_distribution<double> seconds(0, 5);
    Communicator& pair = world.group(world.rank() < 2 ? std::vector<int64_t>{0, 1} : std::vector<int64_t>{2, 3});
    std::deque<std::pair<double, Work>> started;
    for (int64_t i = 0; i < 200; ++i) {
      world.clock().charge(seconds(own));
      switch (common() % 4) {
        case 0:
          started.emplace_back(1, Work());
          started.back().second =
              world.everyone().start_all_reduce(&started.back().first, 1, DataType::float64, Reduction::sum);
          break;
        case 1:
          pair.barrier();
          break;
        case 2: {
          double value = 0;
          if (world.rank() % 2 == 0) {
            pair.send(&value, 1, DataType::float64, 1);
          } else {
            pair.receive(&value, 1, DataType::float64, 0);
          }
          break;
        }
        default:
          for (const auto& [value, work] : started) work.wait();
          started.clear();
      }
    }
    for (const auto& [value, work] : started) work.wait();
    ends[world.rank()] = world.clock().now();
  });
  return ends;
}

TEST(TimedWorld, ModelledTimesRepeatExactly) {
  const auto first = times_of_a_random_program();
  EXPECT_GT(first[0], 200);
  for (int repetition = 0; repetition < 5; ++repetition) EXPECT_EQ(times_of_a_random_program(), first);
}

// Runs a schedule with messages of 8 bytes. Returns the times of all actions, by rank.
std::vector<std::vector<TimedAction>> run_schedule(const Schedule& schedule, const StageSeconds& seconds,
                                                   const ClusterDescription& links) {
  std::vector<std::vector<TimedAction>> ranks(schedule.ranks.size());
  run_timed(schedule.pipeline_parallel, links, ClockKind::virtual_time, [&](World& world, World&) {
    std::deque<int64_t> payloads;
    std::vector<Work> sends;
    for (const Action& action : schedule.ranks[world.rank()]) {
      const double begin = world.clock().now();
      const int64_t stage = schedule.stage(world.rank(), action.chunk);
      switch (action.kind) {
        case ActionKind::forward:
          world.clock().charge(seconds.forward);
          break;
        case ActionKind::backward_input:
          world.clock().charge(seconds.backward_input);
          break;
        case ActionKind::backward_weight:
          world.clock().charge(seconds.backward_weight);
          break;
        case ActionKind::send_activation:
        case ActionKind::send_gradient: {
          const MessageEnd end = other_end(schedule, world.rank(), action);
          payloads.push_back(stage * 1000 + action.micro_batch);
          sends.push_back(world.everyone().start_send(&payloads.back(), 1, DataType::int64, end.rank));
          break;
        }
        case ActionKind::receive_activation:
        case ActionKind::receive_gradient: {
          const int64_t sender = action.kind == ActionKind::receive_activation ? stage - 1 : stage + 1;
          int64_t payload = 0;
          world.everyone().receive(&payload, 1, DataType::int64, other_end(schedule, world.rank(), action).rank);
          EXPECT_EQ(payload, sender * 1000 + action.micro_batch);
          break;
        }
      }
      ranks[world.rank()].push_back({action, begin, world.clock().now()});
    }
    for (const Work& send : sends) send.wait();
  });
  return ranks;
}

struct ScheduleCase {
  PipelineSchedule kind;
  int64_t pipeline_parallel;
  int64_t virtual_stages;
};
constexpr std::array schedule_cases = {
    ScheduleCase{PipelineSchedule::gpipe, 4, 1}, ScheduleCase{PipelineSchedule::one_f_one_b, 4, 1},
    ScheduleCase{PipelineSchedule::interleaved_1f1b, 4, 2}, ScheduleCase{PipelineSchedule::interleaved_1f1b, 2, 3},
    ScheduleCase{PipelineSchedule::zb_h1, 4, 1}};

TEST(TimedWorld, SchedulesHaveTheBubblesOfTheirFormulas) {
  constexpr double infinite = std::numeric_limits<double>::infinity();
  const ClusterDescription free_links{
      .ranks_per_node = 1, .within_node = {0, infinite}, .between_nodes = {0, infinite}, .flops_per_second = 1};
  constexpr int64_t num_microbatches = 8;
  constexpr StageSeconds seconds{1, 1, 1, 0};
  for (const auto& [kind, p, v] : schedule_cases) {
    const auto schedule = make_schedule(kind, p, v, num_microbatches);
    double end = 0;
    for (const auto& rank : run_schedule(schedule, seconds, free_links)) end = std::max(end, rank.back().end);
    const double busy = static_cast<double>(num_microbatches * v) * 3;
    const double formula = bubble_formula(kind, p, v, num_microbatches, 1, 1, 1);
    EXPECT_NEAR(1 - busy / end, formula, 1e-12) << to_string(kind);
  }
}

TEST(TimedWorld, SchedulesTakeTheTimesThatTheirReplaySays) {
  const ClusterDescription slow_links{
      .ranks_per_node = 1, .within_node = {1, 8}, .between_nodes = {0.5, 32}, .flops_per_second = 1};
  constexpr StageSeconds seconds{2, 3, 1, 0.75};
  for (const auto& [kind, p, v] : schedule_cases) {
    const auto schedule = make_schedule(kind, p, v, 8);
    const auto expected = time_schedule(schedule, std::vector<StageSeconds>(schedule.num_stages(), seconds));
    const auto found = run_schedule(schedule, seconds, slow_links);
    for (int64_t rank = 0; rank < p; ++rank) {
      ASSERT_EQ(found[rank].size(), expected.ranks[rank].size());
      for (size_t i = 0; i < found[rank].size(); ++i) {
        const TimedAction& timed = found[rank][i];
        const bool is_send =
            timed.action.kind == ActionKind::send_activation || timed.action.kind == ActionKind::send_gradient;
        EXPECT_EQ(timed.begin, expected.ranks[rank][i].begin) << to_string(kind) << " rank " << rank << " action " << i;
        EXPECT_EQ(timed.end, is_send ? timed.begin : expected.ranks[rank][i].end);
      }
    }
  }
}

}  // namespace
}  // namespace copus
