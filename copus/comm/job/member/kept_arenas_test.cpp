// Tests that a launcher keeps the shared memory (arena) of ranks that have ended.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <array>
#include <csignal>
#include <memory>
#include <string>
#include <vector>

#include "copus/base/error.h"
#include "copus/comm/job/member/control_socket.h"
#include "copus/comm/shared_memory/single_rank_world.h"
#include "copus/comm/shared_memory/state_arena.h"
#include "copus/comm/testing/rank_processes.h"
#include "copus/comm/testing/rank_threads.h"

namespace copus {
namespace {

// A process outside the job keeps the arenas open after all ranks have ended, as a launcher does.
TEST(StateArena, ThoseThatAreKeptAreReadWhenAllRanksHaveEnded) {
  auto [from_ranks, to_keep] = control_sockets();
  const auto fills = [&socket = to_keep](World& world) {
    const auto arena = StateArena::join(world);
    ASSERT_NE(arena, nullptr);
    arena->mine()[5] = std::byte{static_cast<uint8_t>(40 + world.rank())};
    arena->write_record(concat("of ", world.rank()));
    ASSERT_TRUE(
        send(socket, {FromRank::Kind::keeps_arena, {}, static_cast<double>(world.rank())}, arena->file().number()));
    ::raise(SIGKILL);
  };
  run_ranks_as_processes(2, fills);
  std::array<Descriptor, 2> arenas;
  std::vector<KeptArena> kept{{7, getpid(), 1'000'000}};  // an arena that cannot be opened
  for (int64_t i = 0; i < 2; ++i) {
    Descriptor arena;
    const auto message = receive_from_rank(&from_ranks, &arena);
    ASSERT_TRUE(message && arena.is_open());
    kept.push_back({static_cast<int64_t>(message->expected_step_seconds), getpid(), arena.number()});
    arenas[i] = std::move(arena);
  }
  const auto reads = [&](World& world) {
    const auto arena = StateArena::join(world, {2, 3}, {}, kept);
    ASSERT_NE(arena, nullptr);
    EXPECT_THAT(arena->ended(), testing::ElementsAre(0, 1));
    for (const int64_t process : {0, 1}) {
      EXPECT_EQ(arena->record_of(process), concat("of ", process));
      EXPECT_EQ(arena->of(process)[5], std::byte{static_cast<uint8_t>(40 + process)});
    }
    arena->keep_only({2, 3});
    EXPECT_THAT(arena->ended(), testing::IsEmpty());
  };
  EXPECT_EQ(run_ranks_as_processes(2, reads), std::vector<int>(2, 0));
}

// A rank may still have older memory of an ended process, which has loaded its state again since.
TEST(StateArena, OfTwoOfAnEndedProcessTheOneThatIsKeptCounts) {
  std::unique_ptr<StateArena> later = StateArena::join(*single_rank_world(), {1});
  ASSERT_NE(later, nullptr);
  later->mine()[0] = std::byte{99};
  run_ranks_as_threads(2, [&](World& world) {
    const auto arena = StateArena::join(world);
    ASSERT_NE(arena, nullptr);
    arena->mine()[0] = std::byte{1};
    world.everyone().barrier();
    if (world.rank() == 1) return;
    EXPECT_EQ(arena->of(1)[0], std::byte{1});
    ASSERT_TRUE(arena->rejoin(*single_rank_world(), {0}, {}, {{1, getpid(), later->file().number()}}));
    EXPECT_EQ(arena->of(1)[0], std::byte{99});
  });
}

}  // namespace
}  // namespace copus
