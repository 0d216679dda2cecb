// Tests how ranks over TCP meet, leave, and learn of failures.
#include "copus/comm/messages/tcp_health.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <functional>
#include <future>
#include <iterator>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <sstream>
#include <string>
#include <system_error>
#include <thread>
#include <vector>

#include "copus/base/error.h"
#include "copus/comm/messages/tcp_world.h"
#include "copus/comm/testing/test_worlds.h"

namespace copus {
namespace {

using testing::HasSubstr;

// The error with which each rank's wait ends.
std::vector<std::string> failures_of(int64_t size, double wait_seconds, const std::function<void(World&)>& body) {
  std::vector<std::string> failures(size);
  try {
    run_ranks_over_tcp(
        size,
        [&](World& world) {
          try {
            body(world);
          } catch (const RankFailure& failure) {
            failures[world.rank()] = failure.what();
            throw;
          }
        },
        wait_seconds);
  } catch (const std::exception&) {  // NOLINT(bugprone-empty-catch): it is among the returned failures
  }
  return failures;
}

TEST(TcpJobs, ThatNothingIsSentInMeetAndPart) {
  int64_t sizes = 0;
  std::mutex mutex;
  run_ranks_over_tcp(
      5,
      [&](World& world) {
        const std::scoped_lock lock(mutex);
        sizes += world.size();
      },
      10);
  EXPECT_EQ(sizes, 25);
}

// The number of listening sockets on this machine.
int64_t num_doors() {
  std::ifstream table("/proc/self/net/tcp");
  std::set<std::string> listening;
  for (std::string line; std::getline(table, line);) {
    std::istringstream fields(line);
    std::vector<std::string> all{std::istream_iterator<std::string>(fields), {}};
    constexpr size_t state = 3, inode = 9;
    if (all.size() > inode && all[state] == "0A") listening.insert(concat("socket:[", all[inode], "]"));
  }
  int64_t found = 0;
  for (const auto& file : std::filesystem::directory_iterator("/proc/self/fd")) {
    std::error_code error;
    if (listening.contains(std::filesystem::read_symlink(file, error).string())) ++found;
  }
  return found;
}

TEST(TcpJobs, CloseTheirDoorsWhenAllHaveCome) {
  const int64_t before = num_doors();
  std::mutex mutex;
  run_ranks_over_tcp(
      3,
      [&](World& world) {
        Communicator& everyone = world.everyone();
        for (int64_t to = 0; to < world.size(); ++to) {
          if (to != world.rank()) everyone.send(&to, 1, DataType::int64, to);
        }
        for (int64_t from = 0; from < world.size(); ++from) {
          int64_t value = 0;
          if (from == world.rank()) continue;
          everyone.receive(&value, 1, DataType::int64, from);
          EXPECT_EQ(value, world.rank());
        }
        // The thread closes the listening socket only after it has admitted the last rank.
        while (true) {
          const std::scoped_lock lock(mutex);
          if (num_doors() == before) break;
        }
      },
      60);
}

TEST(TcpJobs, RunOverIpv6) {
  run_ranks_over_tcp(
      3,
      [](World& world) {
        int64_t value = world.rank();
        world.everyone().all_reduce(&value, 1, DataType::int64);
        EXPECT_EQ(value, 3);
      },
      10, "::1");
}

TEST(TcpFailures, OfOneRankReachAllWithItsPlace) {
  const auto failures = failures_of(4, 60, [](World& world) {
    world.health().set_place(concat("step ", world.rank()));
    world.everyone().barrier();
    if (world.rank() == 2) throw UserError("the disk is full");
    world.everyone().barrier();
  });
  for (const int64_t rank : {0, 1, 3}) {
    EXPECT_THAT(failures[rank], HasSubstr("rank 2 (pid")) << rank;
    EXPECT_THAT(failures[rank], HasSubstr("it ended with an error of its own")) << rank;
  }
}

TEST(TcpFailures, OfTheFirstRankReachAll) {
  const auto failures = failures_of(3, 60, [](World& world) {
    if (world.rank() == 0) throw UserError("the disk is full");
    world.everyone().barrier();
  });
  for (const int64_t rank : {1, 2}) EXPECT_THAT(failures[rank], HasSubstr("rank 0 (pid")) << rank;
}

TEST(TcpFailures, NameARankThatKeepsOthersWaiting) {
  const auto failures = failures_of(3, 0.5, [&](World& world) {
    world.everyone().barrier();
    if (world.rank() == 1) {
      while (!world.health().failure()) std::this_thread::yield();
      return;
    }
    int64_t value = 0;
    world.group({0, 1, 2}).broadcast(&value, 1, DataType::int64, 1);
  });
  EXPECT_THAT(failures[0] + failures[2], HasSubstr("rank 1 (pid"));
  EXPECT_THAT(failures[0] + failures[2], HasSubstr("waiting for 0.5 s"));
  EXPECT_EQ(failures[1], "");
}

TEST(TcpFailures, TheFirstCountsForAll) {
  std::mutex mutex;
  std::vector<std::string> seen;
  failures_of(4, 60, [&](World& world) {
    world.health().report({world.rank() == 3 ? 1 : 2, "", concat("seen by ", world.rank())});
    const std::scoped_lock lock(mutex);
    seen.push_back(world.health().failure()->cause);
  });
  EXPECT_EQ(seen, std::vector<std::string>(4, seen.front()));
}

// A job that expects three ranks, from the view of rank 0.
class Meeting {
 public:
  std::shared_ptr<TcpHealth> first(double wait_seconds) {
    TcpDoor door("127.0.0.1", token_, 3);
    place_ = door.address();
    return std::make_shared<TcpHealth>(TcpRank{0, 3, 0, 3, wait_seconds}, std::move(door));
  }
  std::shared_ptr<TcpHealth> another(int64_t rank) {
    TcpSocket socket = start_connecting(place_);
    EXPECT_TRUE(finish_connecting(socket, 10));
    auto health = std::make_shared<TcpHealth>(TcpRank{rank, 3, 0, 3, 60}, std::nullopt);
    health->join_parent(std::move(socket), token_);
    return health;
  }
  TcpAddress place() const { return place_; }

 private:
  const std::string token_ = make_token();
  TcpAddress place_;
};

std::string failure_in(const std::function<void()>& body) {
  try {
    body();
  } catch (const RankFailure& failure) {
    return failure.what();
  }
  return "";
}

// Runs ranks as threads that come after the given seconds, or not at all. Returns the error with which each wait ends.
std::vector<std::string> meet_at(const std::vector<std::optional<double>>& seconds, double wait_seconds) {
  std::vector<std::promise<std::string>> places(seconds.size());
  std::vector<std::shared_future<std::string>> found;
  for (auto& place : places) found.push_back(place.get_future().share());
  const auto find = [&](int64_t rank) -> std::optional<std::string> {
    if (found[rank].wait_for(std::chrono::duration<double>(wait_seconds)) != std::future_status::ready) return {};
    return found[rank].get();
  };
  const auto publish = [&](int64_t rank, const std::string& place) { places[rank].set_value(place); };
  std::vector<std::string> failures(seconds.size());
  std::vector<std::thread> threads;
  for (size_t rank = 0; rank < seconds.size(); ++rank) {
    if (!seconds[rank]) continue;
    threads.emplace_back([&, rank] {
      std::this_thread::sleep_for(std::chrono::duration<double>(*seconds[rank]));
      try {
        const auto size = std::ssize(seconds);
        join_tcp({.rank = static_cast<int64_t>(rank), .size = size, .wait_seconds = wait_seconds},
                 {"127.0.0.1", publish, find});
      } catch (const RankFailure& failure) {
        failures[rank] = failure.what();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  return failures;
}

// Longer than the allowed silence: ranks that wait for the late one keep others waiting, which must not report them
// dead.
TEST(TcpMeetings, WaitForARankThatComesLate) {
  const std::vector<std::optional<double>> seconds = {0, 0, 0, 0, 3.6, 0, 0, 0};
  for (const std::string& failure : meet_at(seconds, 20)) EXPECT_EQ(failure, "");
}

TEST(TcpMeetings, NameToAllARankBetweenOthersThatDoesNotCome) {
  const auto failures = meet_at({0, 0, 0, 0, std::nullopt, 0, 0, 0}, 1);
  for (const int64_t rank : {0, 1, 2, 3, 5, 6, 7}) {
    EXPECT_THAT(failures[rank], HasSubstr("rank 4 failed at the start of the job: did not come within 1 s")) << rank;
  }
}

TEST(TcpMeetings, NameARankThatDoesNotCome) {
  Meeting meeting;
  const auto zero = meeting.first(0.3);
  const auto two = meeting.another(2);
  auto told = std::async(std::launch::async, [&] { return failure_in([&] { two->meet({"host-2", 7002}); }); });
  EXPECT_THAT(failure_in([&] { zero->meet({"host-0", 7000}); }),
              HasSubstr("rank 1 failed at the start of the job: did not come within 0.3 s"));
  EXPECT_NE(told.get(), "");
}

TEST(TcpMeetings, NameARankThatComesAndGoes) {
  Meeting meeting;
  const auto zero = meeting.first(60);
  const auto two = meeting.another(2);
  auto told = std::async(std::launch::async, [&] { return failure_in([&] { two->meet({"host-2", 7002}); }); });
  meeting.another(1).reset();
  EXPECT_THAT(failure_in([&] { zero->meet({"host-0", 7000}); }), HasSubstr(" failed: its process ended"));
  EXPECT_NE(told.get(), "");  // the named rank depends on whether it had come before
}

TEST(TcpMeetings, GiveAllTheAddressesOfAllAndMindNoStrangers) {
  Meeting meeting;
  const auto zero = meeting.first(60);
  TcpSocket stranger = start_connecting(meeting.place());
  ASSERT_TRUE(finish_connecting(stranger, 10));
  stranger.send(hello(make_token(), 1));
  const std::vector<std::shared_ptr<TcpHealth>> ranks{zero, meeting.another(1), meeting.another(2)};
  std::vector<std::future<std::vector<TcpAddress>>> met;
  for (int64_t rank = 0; rank < 3; ++rank) {
    met.push_back(std::async(std::launch::async, [&, rank] {
      auto found = ranks[rank]->meet({concat("host-", rank), 7000 + rank});
      ranks[rank]->leave();
      return found;
    }));
  }
  for (auto& each : met) {
    const auto addresses = each.get();
    ASSERT_EQ(addresses.size(), 3U);
    for (int64_t rank = 0; rank < 3; ++rank) {
      EXPECT_EQ(addresses[rank].host, concat("host-", rank));
      EXPECT_EQ(addresses[rank].port, 7000 + rank);
    }
  }
  for (const auto& rank : ranks) EXPECT_FALSE(rank->failure().has_value());
}

TEST(TcpMeetings, NameARankThatDoesNotComeToTheEnd) {
  Meeting meeting;
  const auto zero = meeting.first(0.5);
  const auto one = meeting.another(1);
  const auto two = meeting.another(2);
  auto met_one = std::async(std::launch::async, [&] { one->meet({"host-1", 7001}); });
  auto met_two = std::async(std::launch::async, [&] { two->meet({"host-2", 7002}); });
  zero->meet({"host-0", 7000});
  met_one.get();
  met_two.get();
  auto left = std::async(std::launch::async, [&] { two->leave(); });
  zero->leave();
  left.get();
  EXPECT_THAT(to_string(*two->failure()), HasSubstr("rank 1"));
  EXPECT_THAT(to_string(*two->failure()), HasSubstr("at the end of the job for 0.5 s"));
}

}  // namespace
}  // namespace copus
