// Ranks of several machines as threads. The test takes the role of the launcher.
#include "copus/comm/job/member/membership.h"

#include <gtest/gtest.h>

#include <condition_variable>
#include <deque>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "copus/base/error.h"
#include "copus/comm/messages/tcp_socket.h"

namespace copus {
namespace {

constexpr double wait_seconds = 60;

// A rank that executes tasks on its own thread, and the launcher's ends of the rank's sockets.
class Rank {
 public:
  Rank(int64_t process, int64_t size, const OpenMeetingPlace& place) {
    auto [control, rank_control] = control_sockets();
    auto [lifeline, rank_lifeline] = control_sockets();
    control_ = std::move(control);
    lifeline_ = std::move(lifeline);
    const auto given = [](Descriptor& end) { return ::dup(end.number()); };
    RankEnvironment environment;
    environment.world_size = size;
    environment.local_world_size = 1;
    environment.process = process;
    environment.control = given(rank_control);
    environment.lifeline = given(rank_lifeline);
    environment.master_address = "127.0.0.1";
    environment.master_port = 1;
    membership = std::make_unique<Membership>(environment, wait_seconds, place);
  }

  void begin(const Epoch& epoch, int64_t rank) { EXPECT_TRUE(send_epoch(control_, epoch, rank, -1, 1)); }
  void tell_of(int64_t epoch, const FailureReport& failure) { send(lifeline_, FromLifeline{epoch, failure}); }
  void show_that_launcher_is_there() { send(lifeline_, FromLifeline{}); }
  FromRank next_message() {
    while (true) {
      if (auto message = receive_from_rank(&control_)) return *message;
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  }

  std::unique_ptr<Membership> membership;

 private:
  Descriptor control_, lifeline_;
};

class Memberships : public testing::Test {
 protected:
  Memberships() {
    signs_ = std::thread([this] {
      while (!stop_) {
        {
          const std::scoped_lock lock(mutex_);
          for (Rank& rank : ranks_) rank.show_that_launcher_is_there();
        }
        std::this_thread::sleep_for(std::chrono::milliseconds(200));
      }
    });
  }
  ~Memberships() override {
    stop_ = true;
    signs_.join();
  }

  OpenMeetingPlace place() {
    return [this](const MeetingAddress&) {
      return MeetingPlace{[this](const std::string& name, const std::string& text) {
                            const std::scoped_lock lock(mutex_);
                            published_[name] = text;
                          },
                          [this](const std::string& name) -> std::optional<std::string> {
                            const std::scoped_lock lock(mutex_);
                            const auto found = published_.find(name);
                            if (found == published_.end()) return std::nullopt;
                            return found->second;
                          }};
    };
  }
  Rank& add_rank(int64_t process, int64_t size) {
    const auto here = place();
    const std::scoped_lock lock(mutex_);
    return ranks_.emplace_back(process, size, here);
  }

  std::map<std::string, std::string> published_;
  std::mutex mutex_;

 private:
  std::deque<Rank> ranks_;
  std::atomic<bool> stop_ = false;
  std::thread signs_;
};

int64_t sum_of_ranks(World& world) {
  int64_t sum = world.rank();
  world.everyone().all_reduce(&sum, 1, DataType::int64);
  return sum;
}

TEST_F(Memberships, MeetInEpochAfterEpoch) {
  Rank& first = add_rank(0, 3);
  Rank& second = add_rank(1, 3);
  Rank& third = add_rank(2, 3);
  const std::vector<Epoch> epochs = {{0, {0, 1, 2}, {}, {0, 1, 2}}, {1, {0, 2}, {{1, {}}}, {0, 2}}};
  const auto take_part = [&](Rank& rank, int64_t times) {
    for (int64_t i = 0; i < times; ++i) {
      const auto world = rank.membership->join_next();
      const int64_t size = std::ssize(rank.membership->epoch().processes);
      EXPECT_EQ(rank.membership->epoch().machines, epochs[i].machines);
      EXPECT_EQ(world->size(), size);
      EXPECT_EQ(sum_of_ranks(*world), size * (size - 1) / 2);
      world->health().set_expected_step_seconds(3);
    }
  };
  std::vector<std::thread> threads;
  threads.emplace_back([&] { take_part(first, 2); });
  threads.emplace_back([&] { take_part(second, 1); });
  threads.emplace_back([&] { take_part(third, 2); });
  int64_t place_of = 0;
  for (Rank* const rank : {&first, &second, &third}) rank->begin(epochs[0], place_of++);
  for (Rank* const rank : {&first, &second, &third}) {
    EXPECT_EQ(rank->next_message().kind, FromRank::Kind::joined);
    const FromRank left = rank->next_message();
    EXPECT_EQ(left.kind, FromRank::Kind::left);
    EXPECT_FALSE(left.failure);
    EXPECT_EQ(left.expected_step_seconds, 3);
  }
  for (Rank* const rank : {&first, &third}) EXPECT_EQ(rank->next_message().kind, FromRank::Kind::ready);
  first.begin(epochs[1], 0);
  third.begin(epochs[1], 1);
  for (std::thread& thread : threads) thread.join();
}

TEST_F(Memberships, GiveAFailedWorldWhereOneDoesNotCome) {
  Rank& first = add_rank(0, 3);
  Rank& second = add_rank(1, 3);
  const FailureReport failure{2, "", "killed", 7};
  const auto take_part = [&](Rank& rank) {
    const auto world = rank.membership->join_next();
    EXPECT_EQ(world->size(), 3);
    EXPECT_EQ(world->health().failure()->rank, 2);
    EXPECT_THROW(sum_of_ranks(*world), RankFailure);
    EXPECT_THROW(world->group({world->rank()}).barrier(), RankFailure);
    EXPECT_THROW(world->group({world->rank(), 2}).start_all_reduce(nullptr, 0, DataType::byte, Reduction::sum),
                 RankFailure);
  };
  std::thread one([&] { take_part(first); });
  std::thread other([&] { take_part(second); });
  const Epoch epoch{0, {0, 1, 2}, {}, {0, 1, 2}};
  first.begin(epoch, 0);
  second.begin(epoch, 1);
  for (Rank* const rank : {&first, &second}) rank->tell_of(0, failure);
  for (Rank* const rank : {&first, &second}) {
    const FromRank left = rank->next_message();
    EXPECT_EQ(left.kind, FromRank::Kind::left);
    ASSERT_TRUE(left.failure);
    EXPECT_EQ(left.failure->rank, 2);
    EXPECT_EQ(left.failure->cause, "killed");
  }
  one.join();
  other.join();
}

TEST_F(Memberships, HearOfAFailureThatOnlyTheLauncherSees) {
  Rank& first = add_rank(0, 2);
  Rank& second = add_rank(1, 2);
  const auto take_part = [&](Rank& rank) {
    const auto world = rank.membership->join_next();
    EXPECT_THROW(
        {
          while (true) sum_of_ranks(*world);
        },
        RankFailure);
  };
  std::thread one([&] { take_part(first); });
  std::thread other([&] { take_part(second); });
  const Epoch epoch{4, {0, 1}, {}, {0, 1}};
  first.begin(epoch, 0);
  second.begin(epoch, 1);
  for (Rank* const rank : {&first, &second}) EXPECT_EQ(rank->next_message().kind, FromRank::Kind::joined);
  first.tell_of(3, {1, "", "this was an epoch before"});
  first.tell_of(4, {1, "", "its machine is gone"});
  for (Rank* const rank : {&first, &second}) EXPECT_EQ(rank->next_message().failure->cause, "its machine is gone");
  one.join();
  other.join();
}

// A rank that was delayed finds addresses of an epoch that is over. Even if a door of another epoch now has the same
// address, it does not admit the rank.
TEST_F(Memberships, OfAnOldEpochAreLetInNowhere) {
  TcpDoor door("127.0.0.1", make_token(), 2);
  published_["copus//0/tcp/0"] = concat(door.address().host, ' ', door.address().port, ' ', make_token());
  Rank& late = add_rank(1, 2);
  std::atomic<bool> is_over = false;
  std::thread rank([&] {
    const auto world = late.membership->join_next();
    EXPECT_THROW(sum_of_ranks(*world), RankFailure);
    is_over = true;
  });
  late.begin({0, {0, 1}, {}, {0, 1}}, 1);
  while (!is_over) {
    EXPECT_TRUE(door.admit().empty());
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  rank.join();
}

}  // namespace
}  // namespace copus
