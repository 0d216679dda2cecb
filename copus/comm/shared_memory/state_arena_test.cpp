#include "copus/comm/shared_memory/state_arena.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <fstream>
#include <functional>
#include <map>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "copus/base/error.h"
#include "copus/base/testing/test_support.h"
#include "copus/comm/shared_memory/shared_memory_world.h"
#include "copus/comm/shared_memory/single_rank_world.h"
#include "copus/comm/testing/rank_processes.h"
#include "copus/comm/testing/rank_threads.h"

namespace copus {
namespace {

constexpr int64_t page = ArenaSpace::alignment;
constexpr int64_t huge_page = int64_t{2} << 20;

// A reference model with one element per page, which holds the page's owner.
class NaiveSpace {
 public:
  int64_t allocate(int64_t bytes, int64_t owner) {
    const int64_t pages = (bytes + page - 1) / page;
    for (int64_t first = 0;; ++first) {
      owners_.resize(std::max<size_t>(owners_.size(), first + pages), 0);
      const auto begin = owners_.begin() + first;
      if (!std::all_of(begin, begin + pages, [](int64_t one) { return one == 0; })) continue;
      std::fill_n(begin, pages, owner);
      high_water_ = std::max(high_water_, (first + pages) * page);
      return first * page;
    }
  }
  void release(int64_t owner) { std::replace(owners_.begin(), owners_.end(), owner, int64_t{0}); }
  int64_t used_bytes() const {
    return page * std::count_if(owners_.begin(), owners_.end(), [](int64_t one) { return one != 0; });
  }
  int64_t end() const {
    const auto last = std::find_if(owners_.rbegin(), owners_.rend(), [](int64_t one) { return one != 0; });
    return page * (owners_.rend() - last);
  }
  int64_t high_water() const { return high_water_; }

 private:
  std::vector<int64_t> owners_;
  int64_t high_water_ = 0;
};

TEST(ArenaSpace, IsFirstFitInAnySequence) {
  for (uint64_t seed = 0; seed < 200; ++seed) {
    std::mt19937_64 random(seed);
    ArenaSpace space;
    NaiveSpace naive;
    struct Taken {
      int64_t offset, bytes, owner;
    };
    std::vector<Taken> taken;
    for (int64_t owner = 1; owner <= 120; ++owner) {
      if (!taken.empty() && random() % 5 < 2) {
        const auto which = taken.begin() + static_cast<int64_t>(random() % taken.size());
        space.release(which->offset);
        naive.release(which->owner);
        taken.erase(which);
      } else {
        const auto bytes = static_cast<int64_t>(1 + random() % static_cast<uint64_t>(5 * page));
        const int64_t offset = space.allocate(bytes);
        ASSERT_EQ(offset, naive.allocate(bytes, owner)) << "seed " << seed;
        taken.push_back({offset, bytes, owner});
      }
      ASSERT_EQ(space.used_bytes(), naive.used_bytes()) << "seed " << seed;
      ASSERT_EQ(space.end(), naive.end()) << "seed " << seed;
      ASSERT_EQ(space.high_water(), naive.high_water()) << "seed " << seed;
    }
    for (const Taken& one : taken) ASSERT_EQ(space.bytes_at(one.offset), (one.bytes + page - 1) / page * page);
    for (const Taken& one : taken) space.release(one.offset);
    EXPECT_EQ(space.used_bytes(), 0);
    EXPECT_EQ(space.end(), 0);
    EXPECT_EQ(space.allocate(1 << 20), 0) << "what is free again is one stretch";
  }
}

TEST(ArenaSpace, ACopyIsATrial) {
  ArenaSpace space;
  const int64_t first = space.allocate(1);
  space.allocate(1);
  ArenaSpace trial = space;
  trial.release(first);
  trial.allocate(10 * page);
  EXPECT_EQ(trial.high_water(), 12 * page);
  EXPECT_EQ(space.high_water(), 2 * page);
  EXPECT_EQ(space.bytes_at(first), page);
}

TEST(ArenaSpace, RefusesWhatIsNoAllocation) {
  ArenaSpace space;
  EXPECT_THROW(space.allocate(0), InternalError);
  space.allocate(1);
  EXPECT_THROW(space.release(page), InternalError);
}

int64_t value_of(int64_t rank, int64_t element) { return rank * 1'000'003 + element; }

// Each rank writes its numbers into its own arena, reads the arenas of all others, and writes again.
void share(World& world) {
  const auto arena = StateArena::join(world);
  ASSERT_NE(arena, nullptr);
  constexpr int64_t count = 100'000;
  const int64_t gap = arena->space().allocate(3 * page);
  const int64_t offset = arena->space().allocate(count * 8);
  arena->space().release(gap);
  ASSERT_TRUE(arena->prefault(arena->space().high_water()));
  auto* const mine = reinterpret_cast<int64_t*>(arena->mine() + offset);
  EXPECT_EQ(arena->of(world.rank()), arena->mine());
  for (int64_t round = 0; round < 2; ++round) {
    for (int64_t i = 0; i < count; ++i) mine[i] = value_of(world.rank() + round, i);
    world.everyone().barrier();
    for (int64_t rank = 0; rank < world.size(); ++rank) {
      arena->prefault_read(rank, offset, offset + count * 8);
      const auto* const others = reinterpret_cast<const int64_t*>(arena->of(rank) + offset);
      int64_t wrong = 0;
      for (int64_t i = 0; i < count; ++i) wrong += others[i] != value_of(rank + round, i) ? 1 : 0;
      EXPECT_EQ(wrong, 0) << "rank " << world.rank() << " reads that of rank " << rank;
    }
    world.everyone().barrier();
  }
}

TEST(StateArena, IsReadByThreads) {
  for (const int64_t size : {1, 2, 5}) run_ranks_as_threads(size, share);
}

TEST(StateArena, ASingleRankHasOne) { share(*single_rank_world()); }

TEST(StateArena, IsReadByProcesses) { EXPECT_EQ(run_ranks_as_processes(3, share), std::vector<int>(3, 0)); }

// Kilobytes of the shared memory that this process has touched.
int64_t touched_kib(const StateArena& arena, int64_t end) {
  std::vector<unsigned char> present(end / page);
  mincore(arena.mine(), end, present.data());
  return std::count_if(present.begin(), present.end(), [](unsigned char one) { return (one & 1) != 0; }) * 4;
}

TEST(StateArena, TakesMemoryOnlyWhereAsked) {
  const auto arena = StateArena::join(*single_rank_world());
  ASSERT_NE(arena, nullptr);
  const int64_t end = 16 * huge_page;
  EXPECT_EQ(touched_kib(*arena, end), 0);
  ASSERT_TRUE(arena->prefault(5 * huge_page));
  EXPECT_EQ(touched_kib(*arena, end), 5 * huge_page / 1024);
  ASSERT_TRUE(arena->prefault(2 * huge_page)) << "already there";
  EXPECT_EQ(touched_kib(*arena, end), 5 * huge_page / 1024);
}

TEST(StateArena, PrefaultKeepsWhatIsThere) {
  const auto arena = StateArena::join(*single_rank_world());
  ASSERT_NE(arena, nullptr);
  const int64_t count = 3 * huge_page / 8;
  auto* const values = reinterpret_cast<int64_t*>(arena->mine());
  std::iota(values, values + count, 0);
  ASSERT_TRUE(arena->prefault(4 * huge_page));
  int64_t wrong = 0;
  for (int64_t i = 0; i < count; ++i) wrong += values[i] != i ? 1 : 0;
  EXPECT_EQ(wrong, 0);
}

TEST(StateArena, PrefaultFailsWhereThereIsNoMore) {
  const auto arena = StateArena::join(*single_rank_world());
  ASSERT_NE(arena, nullptr);
  EXPECT_FALSE(arena->prefault(arena->reserved_bytes() + 1));
  EXPECT_EQ(touched_kib(*arena, huge_page), 0);
}

// Why tests that take a rank's descriptors away are skipped under sanitizers, which are used together.
constexpr const char* needs_descriptors = "UndefinedBehaviorSanitizer checks an object's type by a pipe";

// One rank can create no file, or can create one but open no other.
TEST(StateArena, IsHadByAllRanksOrByNone) {
  if (under_address_sanitizer) GTEST_SKIP() << needs_descriptors;
  for (const int files : {0, 1}) {
    const auto body = [files](World& world) {
      if (world.rank() == 1) {
        const int next = dup(0);
        close(next);
        const auto limit = static_cast<rlim_t>(next) + static_cast<rlim_t>(files);
        const rlimit limits{limit, limit};
        ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &limits), 0);
      }
      EXPECT_EQ(StateArena::join(world), nullptr);
    };
    EXPECT_EQ(run_ranks_as_processes(3, body), std::vector<int>(3, 0)) << files;
  }
}

// The dead owner's memory stays readable without a fault. A rank that notices the death ends the job.
TEST(StateArena, OutlivesItsOwner) {
  const auto body = [](World& world) {
    const auto arena = StateArena::join(world);
    ASSERT_NE(arena, nullptr);
    arena->mine()[0] = std::byte{static_cast<uint8_t>(40 + world.rank())};
    world.everyone().barrier();
    pid_t peer = getpid();
    world.everyone().broadcast(&peer, sizeof peer, DataType::byte, 1);
    if (world.rank() == 1) ::raise(SIGKILL);
    while (kill(peer, 0) == 0 && std::ifstream(concat("/proc/", peer, "/maps")).peek() != EOF) {
    }
    EXPECT_EQ(arena->of(1)[0], std::byte{41});
  };
  const std::vector<int> statuses = run_ranks_as_processes(2, body);
  EXPECT_EQ(statuses[0], 0);
  EXPECT_TRUE(WIFSIGNALED(statuses[1]));
}

std::string long_record(int64_t number) { return concat(number, std::string(100'000 + number, 'r')); }

// A later reader finds the last complete record, here after the owner has died while writing records in a row.
TEST(StateArena, ARecordOutlivesItsOwnerAndIsWhole) {
  const auto body = [](World& world) {
    const auto arena = StateArena::join(world);
    ASSERT_NE(arena, nullptr);
    EXPECT_EQ(arena->record_of(1), "");
    world.everyone().barrier();
    pid_t peer = getpid();
    world.everyone().broadcast(&peer, sizeof peer, DataType::byte, 1);
    if (world.rank() == 1) {
      arena->write_record("first");
      world.everyone().barrier();
      for (int64_t number = 0;; ++number) arena->write_record(long_record(number));
    }
    world.everyone().barrier();
    usleep(20'000);
    kill(peer, SIGKILL);
    while (kill(peer, 0) == 0 && std::ifstream(concat("/proc/", peer, "/maps")).peek() != EOF) {
    }
    const std::string record = arena->record_of(1);
    EXPECT_EQ(record, long_record(std::stoll(record)));
  };
  for (int round = 0; round < 10; ++round) EXPECT_EQ(run_ranks_as_processes(2, body)[0], 0);
}

// Processes that take part in a sequence of epochs. Processes listed in `dies` end after the given epoch without
// notifying the others.
class Epochs {
 public:
  using Body = std::function<void(int64_t epoch, World& world, std::unique_ptr<StateArena>& arena)>;

  explicit Epochs(std::vector<std::vector<int64_t>> members) : members_(std::move(members)) {
    for (const auto& processes : members_) {
      segments_.push_back(std::make_shared<SharedSegment>(SharedSegment::create(std::ssize(processes))));
    }
  }

  const std::vector<int64_t>& members(int64_t epoch) const { return members_[epoch]; }

  // Returns whether all processes ended as expected. A process that is missing from a later epoch is expected to be
  // killed.
  bool run(int64_t processes, const Body& body) const {
    std::vector<pid_t> children;
    for (int64_t process = 0; process < processes; ++process) {
      children.push_back(fork());
      if (children.back() == 0) _exit(run_process(process, body));
    }
    bool well = true;
    for (int64_t process = 0; process < processes; ++process) {
      int status = -1;
      waitpid(children[process], &status, 0);
      const bool stays = std::ranges::count(members_.back(), process) > 0;
      well = well && (stays ? status == 0 : WIFSIGNALED(status));
    }
    return well;
  }

 private:
  int run_process(int64_t process, const Body& body) const {
    std::unique_ptr<StateArena> arena;
    bool was_there = false;
    for (size_t epoch = 0; epoch < members_.size(); ++epoch) {
      const auto found = std::ranges::find(members_[epoch], process);
      if (found == members_[epoch].end()) {
        if (was_there) ::raise(SIGKILL);
        continue;
      }
      was_there = true;
      try {
        const auto world = join_shared_memory(segments_[epoch], found - members_[epoch].begin(),
                                              std::ssize(members_[epoch]), 20, false);
        body(static_cast<int64_t>(epoch), *world, arena);
        world->everyone().barrier();
      } catch (const std::exception& error) {
        std::fprintf(stderr, "process %d: %s\n", static_cast<int>(process), error.what());
        return 1;
      }
    }
    return testing::Test::HasFailure() ? 1 : 0;
  }

  const std::vector<std::vector<int64_t>> members_;
  std::vector<std::shared_ptr<SharedSegment>> segments_;
};

bool join_or_rejoin(World& world, const std::vector<int64_t>& processes, std::unique_ptr<StateArena>& arena) {
  if (arena) return arena->rejoin(world, processes);
  arena = StateArena::join(world, processes);
  return arena != nullptr;
}

TEST(StateArena, GoesThroughEpochsWithThoseOfProcessesThatHaveEnded) {
  const Epochs epochs({{0, 1, 2}, {0, 2, 3}, {2, 3, 4}, {2, 4}});
  const auto body = [&](int64_t epoch, World& world, std::unique_ptr<StateArena>& arena) {
    const std::vector<int64_t>& processes = epochs.members(epoch);
    const int64_t process = processes[world.rank()];
    const std::byte* const before = arena ? arena->mine() : nullptr;
    const std::byte* const of_one = epoch == 1 && arena ? arena->of(1) : nullptr;
    ASSERT_TRUE(join_or_rejoin(world, processes, arena));
    if (before != nullptr) {
      EXPECT_EQ(arena->mine(), before) << "what was mapped stays where it is";
    }
    if (of_one != nullptr) {
      EXPECT_EQ(arena->of(1), of_one);
    }
    auto* const mine = reinterpret_cast<int64_t*>(arena->mine());
    if (before == nullptr) {
      EXPECT_EQ(mine[0], 0) << "a newcomer's is empty";
      mine[0] = 100 + process;
    } else {
      EXPECT_EQ(mine[0], 100 + process);
    }
    world.everyone().barrier();
    const auto value_in = [&](int64_t owner, int64_t at) {
      return reinterpret_cast<const int64_t*>(arena->of(owner))[at];
    };
    for (const int64_t other : processes) EXPECT_EQ(value_in(other, 0), 100 + other);
    if (epoch == 1 || epoch == 2) {
      EXPECT_EQ(value_in(1, 0), 101) << "of a process that has ended, for newcomers too";
      // One member writes into the ended process' arena, and all members see the change.
      if (world.rank() == 0) reinterpret_cast<int64_t*>(arena->stand_in(1))[1] = 7 + epoch;
      world.everyone().barrier();
      EXPECT_EQ(value_in(1, 1), 7 + epoch);
    }
    if (epoch == 2) arena->keep_only({2, 3, 4});
    if (epoch < 2) return;
    EXPECT_THROW(arena->of(0), InternalError);
    EXPECT_THROW(arena->of(1), InternalError);
    EXPECT_EQ(value_in(3, 0), 103);
  };
  EXPECT_TRUE(epochs.run(5, body));
}

// Ranks that believe they are on two machines. Each maps the arenas of its own machine, including that of an ended
// process, as long as another process of that machine remains.
TEST(StateArena, IsSharedWithinAMachine) {
  const Epochs epochs({{0, 1, 2, 3, 4}, {0, 1, 3}, {0, 3, 5, 6}});
  const std::map<int64_t, int64_t> machines = {{0, 7}, {1, 7}, {2, 7}, {3, 9}, {4, 9}, {5, 7}, {6, 8}};
  const auto body = [&](int64_t epoch, World& world, std::unique_ptr<StateArena>& arena) {
    const std::vector<int64_t>& processes = epochs.members(epoch);
    const int64_t process = processes[world.rank()];
    std::vector<int64_t> by_rank;
    for (const int64_t each : processes) by_rank.push_back(machines.at(each));
    if (arena) {
      ASSERT_TRUE(arena->rejoin(world, processes, by_rank));
    } else {
      arena = StateArena::join(world, processes, by_rank);
      ASSERT_NE(arena, nullptr);
    }
    arena->mine()[0] = std::byte{static_cast<uint8_t>(100 + process)};
    world.everyone().barrier();
    for (const auto& [other, machine] : machines) {
      const bool was_there = std::ranges::count(epochs.members(0), other) + std::ranges::count(processes, other) > 0;
      ASSERT_EQ(arena->is_here(other), was_there && machine == machines.at(process)) << process << " and " << other;
      if (arena->is_here(other)) {
        EXPECT_EQ(arena->of(other)[0], std::byte{static_cast<uint8_t>(100 + other)});
      }
    }
    EXPECT_EQ(arena->machine_of(3), 9);
    EXPECT_FALSE(arena->are_on_one_machine(processes));
    EXPECT_TRUE(arena->are_on_one_machine({processes.front()}));
    if (epoch == 0) {
      EXPECT_TRUE(arena->are_on_one_machine({0, 1, 2}));
    }
  };
  EXPECT_TRUE(epochs.run(7, body));
}

TEST(StateArena, ANewcomerThatWasCutOffMayComeAgainWithAnotherOne) {
  const Epochs epochs({{0, 1}, {0, 1}});
  EXPECT_TRUE(epochs.run(2, [&](int64_t epoch, World& world, std::unique_ptr<StateArena>& arena) {
    if (epoch == 1 && world.rank() == 1) arena.reset();
    ASSERT_TRUE(join_or_rejoin(world, epochs.members(epoch), arena));
    arena->mine()[0] = std::byte{static_cast<uint8_t>(10 * epoch + world.rank())};
    world.everyone().barrier();
    EXPECT_EQ(arena->of(1)[0], std::byte{static_cast<uint8_t>(10 * epoch + 1)});
  }));
}

TEST(StateArena, IsHadByNewcomersAndMembersOrByNone) {
  if (under_address_sanitizer) GTEST_SKIP() << needs_descriptors;
  for (const int64_t short_of_files : {0, 1}) {
    const Epochs epochs({{0}, {0, 1}});
    EXPECT_TRUE(epochs.run(2, [&](int64_t epoch, World& world, std::unique_ptr<StateArena>& arena) {
      if (epoch == 1 && world.rank() == short_of_files) {
        const int next = dup(0);
        close(next);
        const rlimit limits{static_cast<rlim_t>(next), static_cast<rlim_t>(next)};
        ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &limits), 0);
      }
      EXPECT_EQ(join_or_rejoin(world, epochs.members(epoch), arena), epoch == 0);
    })) << short_of_files;
  }
}

TEST(StateArena, ARankThatDiesMeanwhileIsAFailureAndNoWait) {
  const auto body = [](World& world) {
    if (world.rank() == 1) throw UserError("gone");
    StateArena::join(world);
  };
  EXPECT_THROW(run_ranks_as_threads(3, body), UserError);
}

}  // namespace
}  // namespace copus
