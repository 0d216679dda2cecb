// Memory of ranks that have all ended, which their launcher has kept.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <array>
#include <csignal>
#include <string>
#include <vector>

#include "copus/base/error.h"
#include "copus/comm/job/control_socket.h"
#include "copus/comm/shared_memory/state_arena.h"
#include "copus/comm/testing/rank_processes.h"

namespace copus {
namespace {

// A process that is none of the ranks keeps the arenas open, as a launcher does, when all of them are gone.
TEST(StateArena, those_that_are_kept_are_read_when_all_ranks_have_ended) {
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
  std::vector<KeptArena> kept{{7, getpid(), 1'000'000}};  // which nobody can open
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

}  // namespace
}  // namespace copus
