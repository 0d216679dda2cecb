// Tests how the deciding launcher handles another machine's connection.
#include "copus/comm/job/healing/remote_machine.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>

#include <array>
#include <utility>

#include "copus/comm/job/member/lifeline.h"

namespace copus {
namespace {

using testing::HasSubstr;

class RemoteMachines : public testing::Test {
 protected:
  RemoteMachines() : RemoteMachines(connected()) {}

  std::vector<News> hear(double seconds = 0.1) {
    there.exchange(0);
    return machine.hear(seconds);
  }
  void hear_nothing(double seconds) {
    for (double passed = 0; passed < seconds; passed += 0.25) machine.hear(0.25);
  }

  RemoteMachine machine;
  MachineLink there;  // the other end

 private:
  static std::array<int, 2> connected() {
    std::array<int, 2> ends{};
    EXPECT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends.data()), 0);
    return ends;
  }
  explicit RemoteMachines(std::array<int, 2> ends) : machine(1, TcpSocket(ends[0])), there(TcpSocket(ends[1])) {}
};

TEST_F(RemoteMachines, AreHeardAndTold) {
  there.send(packed(News(Arrived{"node-1", 2, 4})));
  there.send(packed(News(Stopped{3, true})));
  const auto news = hear();
  ASSERT_EQ(news.size(), 1);
  EXPECT_EQ(std::get<Stopped>(news[0]).number, 3);
  EXPECT_EQ(machine.arrived()->ranks_per_machine, 4);
  EXPECT_EQ(machine.name(), "machine 1 (host node-1)");
  machine.tell(KillProcess{3});
  there.exchange(0);
  EXPECT_EQ(std::get<KillProcess>(*order_from(*there.next())).number, 3);
  EXPECT_FALSE(machine.loss());
}

TEST_F(RemoteMachines, ThatAreSilentAreLost) {
  hear_nothing(3.75);
  EXPECT_FALSE(machine.loss());
  hear_nothing(0.5);
  EXPECT_THAT(machine.loss().value_or(""), HasSubstr("was not heard for 4 s"));
}

TEST_F(RemoteMachines, ThatShowThatTheyAreThereAreNotLost) {
  for (int64_t round = 0; round < 20; ++round) {
    there.exchange(0.5);
    hear_nothing(0.5);
  }
  EXPECT_FALSE(machine.loss());
}

TEST_F(RemoteMachines, AreNotLostSinceTheOneThatLooksWasStopped) {
  machine.hear(1000);
  EXPECT_FALSE(machine.loss());
}

// The ranks there die a moment after their launcher.
TEST_F(RemoteMachines, WhoseConnectionEndsAreLostAfterAMoment) {
  there.send(packed(News(Stopped{3, true})));
  there = MachineLink(TcpSocket());
  EXPECT_EQ(machine.hear(0.1).size(), 1) << "what it said before";
  EXPECT_FALSE(machine.loss());
  hear_nothing(0.75);
  EXPECT_THAT(machine.loss().value_or(""), HasSubstr("broke"));
}

TEST_F(RemoteMachines, ThatTalkGarbageAreLeftAloneUntilTheyHaveEnded) {
  there.send("what is this");
  there.send(packed(News(Stopped{3, true})));
  EXPECT_TRUE(hear().empty());
  there.exchange(0);
  while (there.next()) {
  }
  EXPECT_EQ(machine.descriptor(), -1);
  for (double passed = 0; passed < 3.75; passed += 0.25) {
    machine.tell(KillProcess{3});
    there.send(packed(News(Stopped{3, true})));
    there.exchange(0.25);
    EXPECT_TRUE(machine.hear(0.25).empty());
    EXPECT_FALSE(there.next());
    EXPECT_FALSE(machine.loss());
  }
  EXPECT_GT(there.silent_seconds(), fenced_after_seconds) << "its launcher hears nothing, and ends";
  hear_nothing(0.5);
  EXPECT_THAT(machine.loss().value_or(""), HasSubstr("no message"));
}

TEST_F(RemoteMachines, ThatSendATextWithoutAnEndAreLeftAloneToo) {
  const std::array<char, 5> header = {'\xff', '\xff', '\xff', '\xff', 'm'};
  ASSERT_EQ(::send(there.descriptor(), header.data(), header.size(), 0), 5);
  EXPECT_TRUE(hear().empty());
  hear_nothing(3.75);
  EXPECT_FALSE(machine.loss());
  hear_nothing(0.5);
  EXPECT_THAT(machine.loss().value_or(""), HasSubstr("no message"));
}

TEST_F(RemoteMachines, ThatHaveBeenToldTheEndAreNoLoss) {
  machine.conclude(75);
  there.exchange(0);
  EXPECT_EQ(std::get<Conclude>(*order_from(*there.next())).code, 75);
  there = MachineLink(TcpSocket());
  hear_nothing(10);
  EXPECT_FALSE(machine.loss());
  machine.part();
}

TEST_F(RemoteMachines, ThatAreGivenUpNoticeIt) {
  machine.hang_up();
  EXPECT_EQ(machine.descriptor(), -1);
  machine.tell(KillProcess{3});
  EXPECT_TRUE(machine.hear(0.1).empty());
  there.exchange(0);
  EXPECT_TRUE(there.is_over());
}

}  // namespace
}  // namespace copus
