#include "copus/comm/job/healing/machine_messages.h"

#include <gtest/gtest.h>

#include <random>
#include <string>
#include <vector>

#include "copus/comm/job/member/packing.h"

namespace copus {
namespace {

const FailureReport stalled_rank{3, "step 12, forward", "no heartbeat\nfor 3 s", 4711};

std::vector<Order> orders() {
  const Epoch epoch{7, {0, 3, 5}, {{1, stalled_rank}, {2, {-1, "", "", 0}}}, {0, 1, 0}};
  return {BeginJob{12.25},      StartProcess{5, 3, 1, "rank 3: "},
          KillProcess{1 << 20}, TellProcess{2, FromLauncher::Kind::stop},
          BeginEpoch{epoch},    TellOfFailure{7, stalled_rank},
          PassSignal{15},       EndJob{},
          Conclude{75},         ContinueProcess{3}};
}

std::vector<News> all_news() {
  return {Arrived{"node-1", 2, 8},
          Started{5, 4711},
          NotStarted{5, "cannot start rank 5"},
          Said{3, {FromRank::Kind::left, stalled_rank, 0.5}},
          Said{3, {FromRank::Kind::wants_to_leave}},
          Ended{4, 9, "copus: error: the disk is full\n"},
          Stopped{4, true},
          Leaves{}};
}

TEST(MachineMessages, arrive_as_they_were_sent) {
  for (const Order& order : orders()) {
    const auto arrived = order_from(packed(order));
    ASSERT_TRUE(arrived) << order.index();
    EXPECT_EQ(packed(*arrived), packed(order)) << order.index();
  }
  for (const News& news : all_news()) {
    const auto arrived = news_from(packed(news));
    ASSERT_TRUE(arrived) << news.index();
    EXPECT_EQ(packed(*arrived), packed(news)) << news.index();
  }
}

TEST(MachineMessages, keep_every_part) {
  const auto epoch = std::get<BeginEpoch>(*order_from(packed(orders()[4]))).epoch;
  EXPECT_EQ(epoch.number, 7);
  EXPECT_EQ(epoch.processes, (std::vector<int64_t>{0, 3, 5}));
  EXPECT_EQ(epoch.machines, (std::vector<int64_t>{0, 1, 0}));
  ASSERT_EQ(epoch.lost.size(), 2);
  EXPECT_EQ(epoch.lost[0].process, 1);
  EXPECT_EQ(to_string(epoch.lost[0].report), to_string(stalled_rank));
  EXPECT_EQ(std::get<BeginJob>(*order_from(packed(orders()[0]))).seconds, 12.25);
  const auto start = std::get<StartProcess>(*order_from(packed(orders()[1])));
  EXPECT_EQ(start.number * 100 + start.rank * 10 + start.local_rank, 531);
  EXPECT_EQ(start.prefix, "rank 3: ");
  const auto said = std::get<Said>(*news_from(packed(all_news()[3])));
  EXPECT_EQ(said.number, 3);
  EXPECT_EQ(said.message.kind, FromRank::Kind::left);
  EXPECT_EQ(to_string(*said.message.failure), to_string(stalled_rank));
  EXPECT_EQ(said.message.expected_step_seconds, 0.5);
  const auto ended = std::get<Ended>(*news_from(packed(all_news()[5])));
  EXPECT_EQ(ended.number * 10 + ended.status, 49);
  EXPECT_EQ(ended.held_back, "copus: error: the disk is full\n");
  EXPECT_TRUE(std::get<Stopped>(*news_from(packed(all_news()[6]))).is_stopped);
  EXPECT_EQ(std::get<Arrived>(*news_from(packed(all_news()[0]))).ranks_per_machine, 8);
}

TEST(MachineMessages, that_are_cut_off_or_too_long_are_none) {
  for (const Order& order : orders()) {
    const std::string whole = packed(order);
    for (size_t length = 0; length < whole.size(); ++length) EXPECT_FALSE(order_from(whole.substr(0, length)));
    EXPECT_FALSE(order_from(whole + "x"));
  }
  for (const News& news : all_news()) {
    const std::string whole = packed(news);
    for (size_t length = 0; length < whole.size(); ++length) EXPECT_FALSE(news_from(whole.substr(0, length)));
    EXPECT_FALSE(news_from(whole + "x"));
  }
}

TEST(MachineMessages, of_an_unknown_kind_are_none) {
  for (const int64_t kind : {int64_t{-1}, int64_t{9}, int64_t{1} << 40}) {
    Packer packer;
    packer.add(kind);
    EXPECT_FALSE(order_from(packer.bytes()));
    EXPECT_FALSE(news_from(packer.bytes()));
  }
  EXPECT_FALSE(order_from(packed(Order(TellProcess{1, FromLauncher::Kind::epoch}))));
  EXPECT_FALSE(order_from(packed(Order(TellProcess{1, FromLauncher::Kind{77}}))));
  EXPECT_FALSE(news_from(packed(News(Said{1, {FromRank::Kind{77}}}))));
}

// Received lengths must not be trusted: memory would be allocated for them.
TEST(MachineMessages, of_random_bytes_are_read_without_harm) {
  std::mt19937_64 random(1);
  const std::string epoch = packed(orders()[4]);
  for (int64_t round = 0; round < 20'000; ++round) {
    std::string bytes = epoch;
    for (int64_t change = 0; change < 3; ++change) bytes[random() % bytes.size()] = static_cast<char>(random());
    const auto order = order_from(bytes);
    EXPECT_LE(order ? packed(*order).size() : 0, bytes.size());
    news_from(bytes);
  }
}

}  // namespace
}  // namespace copus
