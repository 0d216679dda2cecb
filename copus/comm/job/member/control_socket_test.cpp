#include "copus/comm/job/member/control_socket.h"

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include <string>
#include <thread>
#include <vector>

#include "copus/base/error.h"

namespace copus {
namespace {

TEST(ControlSocket, CarriesWhatRanksSay) {
  auto [launcher, rank] = control_sockets();
  EXPECT_FALSE(receive_from_rank(&launcher));
  EXPECT_TRUE(send(rank, {FromRank::Kind::ready}));
  EXPECT_TRUE(send(rank, {FromRank::Kind::wants_to_leave}));
  EXPECT_EQ(receive_from_rank(&launcher)->kind, FromRank::Kind::ready);
  EXPECT_EQ(receive_from_rank(&launcher)->kind, FromRank::Kind::wants_to_leave);
  EXPECT_FALSE(receive_from_rank(&launcher));
  EXPECT_TRUE(launcher.is_open());
}

TEST(ControlSocket, CarriesAnEpochWithItsSegment) {
  auto [launcher, rank] = control_sockets();
  const Epoch epoch{3, {0, 4, 5}, {{1, {1, "step 12, forward", "killed", 77}}, {2, {2, "", "stopped\nand more", 0}}}};
  ASSERT_TRUE(send(launcher, FromLauncher::Kind::regroup));
  ASSERT_TRUE(send_epoch(launcher, epoch, 2, launcher.number()));
  EXPECT_EQ(receive_from_launcher(&rank)->kind, FromLauncher::Kind::regroup);
  const auto received = receive_from_launcher(&rank);
  ASSERT_TRUE(received);
  EXPECT_EQ(received->kind, FromLauncher::Kind::epoch);
  EXPECT_EQ(received->rank, 2);
  EXPECT_EQ(received->epoch.number, 3);
  EXPECT_EQ(received->epoch.processes, epoch.processes);
  ASSERT_EQ(received->epoch.lost.size(), 2);
  EXPECT_EQ(received->epoch.lost[1].process, 2);
  EXPECT_EQ(to_string(received->epoch.lost[0].report), "rank 1 (pid 77) failed at step 12, forward: killed");
  EXPECT_EQ(received->epoch.lost[1].report.cause, "stopped\nand more");
  struct stat sent{}, arrived{};
  ASSERT_EQ(fstat(launcher.number(), &sent), 0);
  ASSERT_EQ(fstat(received->segment.number(), &arrived), 0);
  EXPECT_EQ(sent.st_ino, arrived.st_ino);
}

// Sends arbitrary bytes, which may not form a message.
void send_raw(const Descriptor& socket, const std::string& bytes) {
  ASSERT_EQ(::send(socket.number(), bytes.data(), bytes.size(), 0), std::ssize(bytes));
}

std::string as_bytes(int64_t number) { return {reinterpret_cast<const char*>(&number), sizeof number}; }

TEST(ControlSocket, TellsTheLauncherWhatIsNoMessageAndGoesOn) {
  auto [launcher, rank] = control_sockets();
  const std::string garbled[] = {"x",         std::string(1000, '\xa5'),  as_bytes(0),
                                 as_bytes(3), as_bytes(int64_t{1} << 32), as_bytes(1) + "x"};
  for (const std::string& bytes : garbled) {
    send_raw(rank, bytes);
    EXPECT_EQ(receive_from_rank(&launcher).value().kind, FromRank::Kind::garbled);
  }
  EXPECT_TRUE(send(rank, FromRank{FromRank::Kind::ready}));
  EXPECT_EQ(receive_from_rank(&launcher).value().kind, FromRank::Kind::ready);
}

// Such an error ends the rank, and the job heals. The rank neither mistakes the bytes for a message nor runs out of
// memory.
TEST(ControlSocket, RefusesWhatIsNoMessageOfTheLauncher) {
  auto [launcher, rank] = control_sockets();
  const int64_t epoch = static_cast<int64_t>(FromLauncher::Kind::epoch);
  const std::string begin = as_bytes(epoch) + as_bytes(1) + as_bytes(0);
  const std::string garbled[] = {"x",
                                 std::string(1000, '\xa5'),
                                 as_bytes(0),
                                 as_bytes(5),
                                 begin,
                                 begin + as_bytes(int64_t{1} << 60),
                                 begin + as_bytes(-1),
                                 begin + as_bytes(0) + as_bytes(int64_t{1} << 60),
                                 begin + as_bytes(0) + as_bytes(1) + as_bytes(7)};
  for (const std::string& bytes : garbled) {
    send_raw(launcher, bytes);
    EXPECT_THROW(receive_from_launcher(&rank), InternalError) << bytes.size();
  }
}

TEST(ControlSocket, CarriesAnEpochOfMany) {
  auto [launcher, rank] = control_sockets();
  const Epoch epoch{1, std::vector<int64_t>(5000, 8), {}};
  ASSERT_TRUE(send_epoch(launcher, epoch, 0, launcher.number()));
  EXPECT_EQ(receive_from_launcher(&rank)->epoch.processes, epoch.processes);
}

// Guards against a message that arrives between the receiver's peek and read and would be truncated.
TEST(ControlSocket, ReceivesMessagesWholeWhileTheyAreBeingSent) {
  constexpr int64_t messages = 20'000;
  auto [launcher, rank] = control_sockets();
  std::thread sender([&launcher = launcher] {
    for (int64_t number = 0; number < messages; ++number) {
      const Epoch epoch{number, {0, 1, 2}, {}};
      while (!send_epoch(launcher, epoch, 0, launcher.number())) std::this_thread::yield();
    }
  });
  int64_t received = 0;
  while (received < messages) {
    const auto message = receive_from_launcher(&rank);
    if (!message) continue;
    EXPECT_EQ(message->epoch.number, received);
    EXPECT_EQ(message->epoch.processes, (std::vector<int64_t>{0, 1, 2}));
    ++received;
  }
  sender.join();
}

// The kernel reports such an end before it delivers what was sent.
TEST(ControlSocket, ReceivesWhatWasSentByAnEndThatLeftMessagesUnread) {
  auto [launcher, rank] = control_sockets();
  EXPECT_TRUE(send(launcher, FromLauncher::Kind::regroup));
  EXPECT_TRUE(send(rank, {FromRank::Kind::wants_to_leave}));
  EXPECT_TRUE(send(rank, {FromRank::Kind::ready}));
  rank = Descriptor();
  EXPECT_EQ(receive_from_rank(&launcher)->kind, FromRank::Kind::wants_to_leave);
  EXPECT_EQ(receive_from_rank(&launcher)->kind, FromRank::Kind::ready);
  EXPECT_FALSE(receive_from_rank(&launcher));
  EXPECT_FALSE(launcher.is_open());
}

TEST(ControlSocket, TellsThatTheOtherEndIsClosed) {
  auto [launcher, rank] = control_sockets();
  launcher = Descriptor();
  EXPECT_FALSE(send(rank, {FromRank::Kind::ready}));
  EXPECT_FALSE(receive_from_launcher(&rank));
  EXPECT_FALSE(rank.is_open());
}

}  // namespace
}  // namespace copus
