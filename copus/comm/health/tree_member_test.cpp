// Up to 8,192 members of a tree under a simulated scheduler, without threads and connections and with a simulated
// clock.
#include "copus/comm/health/tree_member.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <queue>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "copus/base/error.h"

namespace copus {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;
using testing::HasSubstr;
using Time = TreeMember::Time;

TEST(RankTree, LeadsFromEveryRankToEveryOther) {
  for (const int64_t size : {1, 2, 3, 5, 8, 13, 64, 100}) {
    std::vector<int64_t> seen(size, 0);
    for (int64_t rank = 0; rank < size; ++rank) {
      const RankTree tree(rank, size);
      for (const int64_t child : tree.children()) {
        EXPECT_EQ(RankTree(child, size).parent(), rank);
        ++seen[child];
      }
      for (int64_t other = 0; other < size; ++other) {
        int64_t at = rank, steps = 0;
        for (; at != other && steps < size; ++steps) at = RankTree(at, size).towards(other);
        EXPECT_EQ(at, other) << "from " << rank << " of " << size;
        EXPECT_LE(steps, 2 * std::ceil(std::log2(size)));
      }
    }
    for (int64_t rank = 1; rank < size; ++rank) EXPECT_EQ(seen[rank], 1) << rank << " of " << size;
  }
}

TEST(RankTree, HasFewNeighboursAndAMachinesRanksBelowItsFirst) {
  EXPECT_EQ(RankTree(0, 8192).children().size(), 13U);
  EXPECT_EQ(RankTree(4096, 8192).children().size(), 12U);
  for (int64_t rank = 0; rank < 64; ++rank) {
    const RankTree tree(rank, 64);
    if (rank % 8 != 0) {
      EXPECT_EQ(tree.parent() / 8, rank / 8);
    }
  }
}

// Members and the texts between them, which take 20 to 60 us and arrive in order. Members call look() every 50 ms.
class Simulation {
 public:
  Simulation(int64_t size, uint64_t seed, double wait_seconds = 60) : random_(seed), last_arrival_(size) {
    testing::Test::RecordProperty("seed", static_cast<int>(seed));
    for (int64_t rank = 0; rank < size; ++rank) {
      members_.push_back(std::make_unique<TreeMember>(rank, size, 1000 + rank, wait_seconds, now_));
      members_.back()->set_place(concat("step ", rank));
      running_.push_back(true);
    }
  }

  TreeMember& operator[](int64_t rank) { return *members_[rank]; }
  int64_t size() const { return std::ssize(members_); }
  double seconds() const { return std::chrono::duration<double>(now_ - Time()).count(); }
  int64_t messages = 0, bytes = 0;

  // Each rank comes at a random time within `within`. It connects to its parent once both are there.
  void start(const std::set<int64_t>& absent = {}, milliseconds within = milliseconds(500)) {
    std::vector<Time> comes;
    for (int64_t rank = 0; rank < size(); ++rank) {
      comes.push_back(now_ + microseconds(random_() % std::chrono::duration_cast<microseconds>(within).count()));
    }
    for (int64_t rank = 0; rank < size(); ++rank) {
      if (absent.contains(rank)) {
        running_[rank] = false;
        continue;
      }
      at(comes[rank], [this, rank] {
        members_[rank]->come(std::to_string(rank % 10));  // short, because all members hold all cards
        deliver(rank);
      });
      at(comes[rank], [this, rank] { look(rank); });
      const int64_t parent = members_[rank]->tree().parent();
      if (rank == 0 || absent.contains(parent)) continue;
      at(std::max(comes[rank], comes[parent]), [this, rank, parent] {
        members_[parent]->connect(rank, now_);
        members_[rank]->connect(parent, now_);
        deliver(parent);
        deliver(rank);
      });
    }
  }

  // A stopped rank becomes silent without notice. If a rank is killed, its connections end.
  void stop(int64_t rank) { running_[rank] = false; }
  void kill(int64_t rank) {
    stop(rank);
    const auto hang_up = [&](int64_t neighbour) {
      at(now_ + microseconds(50), [this, rank, neighbour] {
        members_[neighbour]->lose(rank);
        deliver(neighbour);
      });
    };
    if (rank > 0) hang_up(members_[rank]->tree().parent());
    for (const int64_t child : members_[rank]->tree().children()) hang_up(child);
  }
  void report(int64_t rank, const FailureReport& failure) {
    members_[rank]->report({failure}, now_);
    deliver(rank);
  }
  void leave(int64_t rank) {
    members_[rank]->leave(now_);
    deliver(rank);
  }

  // Runs until the condition holds for every running rank, or for `longest`. Returns whether it does.
  template <class Condition>
  bool run(const Condition& holds_of, double longest) {
    const auto holds = [&] {
      for (int64_t rank = 0; rank < size(); ++rank) {
        if (running_[rank] && !holds_of(*members_[rank])) return false;
      }
      return true;
    };
    const Time end = now_ + std::chrono::duration_cast<Time::duration>(std::chrono::duration<double>(longest));
    Time asked{};
    while (!events_.empty() && events_.top().time <= end) {
      const Event event = events_.top();
      events_.pop();
      now_ = event.time;
      event.happen();
      if (now_ - asked < milliseconds(1)) continue;
      asked = now_;
      if (holds()) return true;
    }
    now_ = end;
    return holds();
  }
  bool run_for(double longest) {
    return run([](const TreeMember&) { return false; }, longest);
  }

 private:
  struct Event {
    Time time;
    int64_t number;
    std::function<void()> happen;
    bool operator<(const Event& other) const { return std::pair(other.time, other.number) < std::pair(time, number); }
  };

  void at(Time time, std::function<void()> happen) { events_.push({time, ++number_, std::move(happen)}); }

  void look(int64_t rank) {
    if (!running_[rank]) return;
    members_[rank]->look(now_);
    deliver(rank);
    at(now_ + milliseconds(50), [this, rank] { look(rank); });
  }

  void deliver(int64_t rank) {
    if (!running_[rank]) {
      members_[rank]->take_texts();
      return;
    }
    for (TreeMember::Text& text : members_[rank]->take_texts()) {
      ++messages;
      bytes += std::ssize(text.content) + 5;
      Time& last = last_arrival_[rank][text.to];
      last = std::max(last, now_ + microseconds(20 + random_() % 40));
      at(last, [this, rank, text = std::move(text)] {
        if (!running_[text.to]) return;
        members_[text.to]->take(rank, text.kind, text.content, now_);
        deliver(text.to);
      });
    }
  }

  std::mt19937_64 random_;
  Time now_{std::chrono::hours(1)};
  std::vector<std::unique_ptr<TreeMember>> members_;
  std::vector<bool> running_;
  std::vector<std::map<int64_t, Time>> last_arrival_;  // by sender and receiver
  std::priority_queue<Event> events_;
  int64_t number_ = 0;
};

bool has_met(const TreeMember& member) { return member.has_met(); }
bool has_decided(const TreeMember& member) { return member.decision().has_value(); }

// Runs until all remaining ranks have decided. Returns the seconds, and expects all decisions to name `rank`.
double expect_named(Simulation& job, int64_t rank, const std::string& cause, const std::set<int64_t>& gone) {
  const double begin = job.seconds();
  EXPECT_TRUE(job.run(has_decided, 100));
  for (int64_t other = 0; other < job.size(); ++other) {
    if (gone.contains(other)) continue;
    const auto& decision = job[other].decision();
    if (!decision) {
      ADD_FAILURE() << "rank " << other << " knows of nothing";
      continue;
    }
    EXPECT_EQ(decision->failure.rank, rank) << "as rank " << other << " knows it";
    EXPECT_EQ(decision->failure.pid, 1000 + rank) << other;
    EXPECT_EQ(decision->failure.place, concat("step ", rank)) << other;
    EXPECT_THAT(decision->failure.cause, HasSubstr(cause)) << other;
  }
  return job.seconds() - begin;
}

class Members : public testing::TestWithParam<int64_t> {};

TEST_P(Members, MeetWatchAndPart) {
  const int64_t size = GetParam();
  Simulation job(size, 1);
  job.start();
  ASSERT_TRUE(job.run(has_met, 5));
  EXPECT_LT(job.seconds() - 3600, 0.6) << "the last comes within 0.5 s";
  for (int64_t rank = 0; rank < size; ++rank) {
    if (rank % (1 + size / 8) != 0) continue;
    const std::vector<std::string> cards = job[rank].cards();
    for (int64_t other = 0; other < size; ++other) ASSERT_EQ(cards[other], std::to_string(other % 10)) << other;
  }
  // Each rank has a few neighbours, with which it exchanges five heartbeats per second.
  job.messages = 0;
  EXPECT_FALSE(job.run_for(2));
  EXPECT_NEAR(static_cast<double>(job.messages), static_cast<double>(2 * (size - 1) * 10),
              static_cast<double>(4 * size));
  for (int64_t rank = 0; rank < size; ++rank) {
    EXPECT_FALSE(job[rank].decision().has_value());
    job.leave(rank);
    if (rank + 1 < size) {
      EXPECT_FALSE(job[0].has_ended());
    }
  }
  EXPECT_TRUE(job.run([](const TreeMember& member) { return member.has_ended(); }, 1));
}

INSTANTIATE_TEST_SUITE_P(, Members, testing::Values(1, 2, 3, 8, 100, 1024, 8192));

class FailuresOfAThousand : public testing::TestWithParam<int64_t> {};

TEST_P(FailuresOfAThousand, OfAStoppedRankAreNamedInTime) {
  const int64_t rank = GetParam();
  Simulation job(1024, 2);
  job.start();
  ASSERT_TRUE(job.run(has_met, 5));
  job.run_for(1);
  job.stop(rank);
  EXPECT_LT(expect_named(job, rank, "no heartbeat for 3 s", {rank}), 3.5);
}

TEST_P(FailuresOfAThousand, OfAKilledRankAreNamedAtOnce) {
  const int64_t rank = GetParam();
  Simulation job(1024, 3);
  job.start();
  ASSERT_TRUE(job.run(has_met, 5));
  job.run_for(1);
  job.kill(rank);
  EXPECT_LT(expect_named(job, rank, "its process ended", {rank}), 0.1);
}

TEST_P(FailuresOfAThousand, ThatAnybodyReportsAreToldWithTheRanksPlace) {
  const int64_t rank = GetParam();
  for (const int64_t reporter : {0, 777}) {
    Simulation job(1024, 4);
    job.start();
    ASSERT_TRUE(job.run(has_met, 5));
    job.run_for(1);
    job.report(reporter, {rank, "", "kept others waiting"});
    EXPECT_LT(expect_named(job, rank, "kept others waiting", {}), 0.1) << "reported by " << reporter;
  }
}

INSTANTIATE_TEST_SUITE_P(, FailuresOfAThousand, testing::Values(0, 1, 512, 768, 1023));

TEST(Failures, ReportedAtOnceAreOneForAll) {
  std::mt19937_64 random(5);
  for (int round = 0; round < 20; ++round) {
    Simulation job(64, random());
    job.start();
    ASSERT_TRUE(job.run(has_met, 5));
    for (int64_t rank = 0; rank < 64; ++rank) {
      job.report(rank, {static_cast<int64_t>(random() % 64), "", concat("seen by ", rank)});
    }
    ASSERT_TRUE(job.run(has_decided, 5));
    for (int64_t rank = 1; rank < 64; ++rank) {
      EXPECT_EQ(job[rank].decision()->failure.cause, job[0].decision()->failure.cause);
    }
  }
}

// If no neighbour of the failed rank can answer, the report has what its sender knows.
TEST(Failures, AreDecidedWhereNobodyCompletesThem) {
  Simulation job(64, 6);
  job.start();
  ASSERT_TRUE(job.run(has_met, 5));
  job.stop(48);  // the parent of 50
  job.report(1, {50, "", "kept rank 1 waiting"});
  job.run_for(0.5);
  for (int64_t rank = 0; rank < 48; ++rank) {
    ASSERT_TRUE(job[rank].decision().has_value()) << rank;
    EXPECT_EQ(job[rank].decision()->failure.rank, 50) << rank;
  }
}

TEST(Failures, ThatARankWasItselfHeldUpIsNobodysFault) {
  Simulation job(16, 7);
  job.start();
  ASSERT_TRUE(job.run(has_met, 5));
  // For four seconds the rank hears nothing, and only then calls look().
  job[15].look(Time(std::chrono::hours(1)) + std::chrono::seconds(8));
  EXPECT_FALSE(job[15].decision().has_value());
  job.run_for(0.5);
  EXPECT_FALSE(job[0].decision().has_value());
}

TEST(Meetings, NameARankThatDoesNotCome) {
  for (const int64_t absent : {1, 4, 7}) {
    Simulation job(8, 8, 10);
    job.start({absent});
    EXPECT_FALSE(job.run(has_met, 9));
    job.run_for(2);
    for (int64_t rank = 0; rank < 8; ++rank) {
      if (rank == absent || RankTree(rank, 8).parent() == absent) continue;  // these have no parent to connect to
      if (rank > absent && rank < RankTree(absent, 8).end()) continue;
      ASSERT_TRUE(job[rank].decision().has_value()) << rank << " without " << absent;
      EXPECT_THAT(to_string(job[rank].decision()->failure), HasSubstr(concat("rank ", absent, " failed at the start")));
    }
  }
}

TEST(Partings, NameARankThatDoesNotComeToTheEnd) {
  for (const int64_t absent : {0, 1, 4, 7}) {
    Simulation job(8, 9, 10);
    job.start();
    ASSERT_TRUE(job.run(has_met, 5));
    for (int64_t rank = 0; rank < 8; ++rank) {
      if (rank != absent) job.leave(rank);
    }
    job.run_for(9);
    for (int64_t rank = 0; rank < 8; ++rank) EXPECT_FALSE(job[rank].decision() || job[rank].has_ended());
    expect_named(job, absent, "kept others waiting at the end of the job for 10 s", {});
  }
}

TEST(Meetings, NameAParentThatDoesNotComeToAllBelow) {
  Simulation job(8, 10, 10);
  job.start({4});
  job.run_for(9);
  for (const int64_t rank : {5, 6}) {
    job[rank].miss_parent();
    EXPECT_TRUE(job[rank].decides_itself());
  }
  job.run_for(1);
  EXPECT_FALSE(job[7].decides_itself());
  for (const int64_t rank : {5, 6, 7}) {
    EXPECT_THAT(to_string(job[rank].decision()->failure), HasSubstr("rank 4 failed at the start"));
  }
}

TEST(Texts, OfStrangersDoNothing) {
  TreeMember member(5, 8, 1, 60, Time());
  for (const char kind : {'a', 'e', 'f', 'd', 'l', 'b', 'g', 'h', 'x'}) {
    member.take(6, kind, "9 9 9 9\n9", Time());  // not a neighbour
    if (kind != 'e' && kind != 'g') member.take(4, kind, "", Time());
  }
  member.take(4, 'd', "9 0 0 0\n\nof no rank", Time());
  EXPECT_FALSE(member.decision() || member.has_met() || member.has_ended());
}

// After meeting, a rank relies on having as many addresses as ranks.
TEST(Texts, WithOtherNumbersOfCardsThanRanksAreTheirSendersFailure) {
  for (const char* cards : {"", "x", "x\n", "x\ny", "x\ny\nz\n"}) {
    TreeMember root(0, 4, 1, 60, Time());
    for (const int64_t child : {1, 2}) root.connect(child, Time());
    root.come("w");
    root.take(1, 'a', "v\n", Time());
    root.take(2, 'a', cards, Time());  // from the subtree of ranks 2 and 3
    EXPECT_FALSE(root.has_met()) << cards;
    ASSERT_TRUE(root.decision()) << cards;
    EXPECT_EQ(root.decision()->failure.rank, 2);
    EXPECT_THAT(to_string(root.decision()->failure), HasSubstr("no addresses"));

    TreeMember leaf(3, 4, 1, 60, Time());
    leaf.connect(2, Time());
    leaf.come("w");
    leaf.take(2, 'e', cards, Time());
    EXPECT_FALSE(leaf.has_met()) << cards;
    ASSERT_TRUE(leaf.decision()) << cards;
    EXPECT_EQ(leaf.decision()->failure.rank, 2);
  }
}

}  // namespace
}  // namespace copus
