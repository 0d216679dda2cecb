// Tests which connections a rank's listening socket (TcpDoor) admits, and what happens to the others.
#include "copus/comm/messages/tcp_socket.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/socket.h>

#include <cstring>
#include <filesystem>
#include <iterator>
#include <random>
#include <string_view>
#include <vector>

#include "copus/base/error.h"

namespace copus {
namespace {

const std::string& token() {
  static const std::string kept = make_token();
  return kept;
}

std::vector<std::byte> bytes_of(std::string_view text) {
  std::vector<std::byte> bytes(text.size());
  std::memcpy(bytes.data(), text.data(), text.size());
  return bytes;
}

// Connects to the listening socket and sends `words`.
TcpSocket knock(const TcpDoor& door, const std::vector<std::byte>& words) {
  TcpSocket socket = start_connecting(door.address());
  EXPECT_TRUE(finish_connecting(socket, 10));
  EXPECT_EQ(socket.send(words), std::ssize(words));
  return socket;
}

// Waits until the listening socket has admitted `expected` connections, and returns them.
std::vector<TcpDoor::Guest> let_in(TcpDoor& door, size_t expected) {
  std::vector<TcpDoor::Guest> guests;
  while (guests.size() < expected) {
    std::vector<pollfd> descriptors;
    door.add_descriptors(descriptors);
    if (::poll(descriptors.data(), descriptors.size(), 10'000) == 0) break;
    for (TcpDoor::Guest& guest : door.admit()) guests.push_back(std::move(guest));
  }
  return guests;
}

// Whether the other end has closed the connection.
bool is_closed(TcpSocket& socket) {
  pollfd descriptor{socket.descriptor(), POLLIN, 0};
  EXPECT_EQ(::poll(&descriptor, 1, 10'000), 1);
  std::byte byte{};
  return socket.receive({&byte, 1}) < 0;
}

int64_t num_open_files() {
  return std::distance(std::filesystem::directory_iterator("/proc/self/fd"), std::filesystem::directory_iterator());
}

class Door : public testing::TestWithParam<const char*> {
 protected:
  TcpDoor door_{GetParam(), token(), 4};
};

TEST_P(Door, LetsInWhoKnowsTheTokenAndSaysWhichRankItIs) {
  const TcpSocket three = knock(door_, hello(token(), 3));
  const TcpSocket two = knock(door_, hello(token(), 2));
  auto guests = let_in(door_, 2);
  ASSERT_EQ(guests.size(), 2U);
  EXPECT_EQ(guests[0].rank + guests[1].rank, 5);
}

TEST_P(Door, TurnsAwayWhoDoesNotKnowTheTokenOrIsNoRankOrTalksGarbage) {
  std::string wrong = token();
  wrong.back() = wrong.back() == 'a' ? 'b' : 'a';
  TcpSocket guessing = knock(door_, hello(wrong, 1));
  TcpSocket beyond = knock(door_, hello(token(), 4));
  TcpSocket negative = knock(door_, hello(token(), -1));
  TcpSocket garbage = knock(door_, bytes_of("GET / HTTP/1.1\r\nHost: rank-0\r\nAccept: everything there is\r\n\r\n"));
  {
    const TcpSocket silent = knock(door_, {});
  }
  const TcpSocket rank = knock(door_, hello(token(), 1));
  EXPECT_EQ(let_in(door_, 1).size(), 1U);
  for (TcpSocket* each : {&guessing, &beyond, &negative, &garbage}) EXPECT_TRUE(is_closed(*each));
}

// Otherwise an attacker could find the token letter by letter.
TEST_P(Door, TellsNobodyHowMuchOfTheTokenIsRight) {
  const std::vector<std::byte> right = hello(token(), 1), wrong = hello(make_token(), 1);
  for (const size_t letters : {9, 20, 39}) {
    const auto end = static_cast<std::ptrdiff_t>(letters);
    TcpSocket knows = knock(door_, {right.begin(), right.begin() + end});
    TcpSocket guesses = knock(door_, {wrong.begin(), wrong.begin() + end});
    for (int looks = 0; looks < 3; ++looks) EXPECT_TRUE(door_.admit().empty());
    for (TcpSocket* each : {&knows, &guesses}) {
      std::byte byte{};
      EXPECT_EQ(each->receive({&byte, 1}), 0) << letters << " letters, and it hangs up";
    }
  }
}

TEST_P(Door, WaitsForAHelloThatComesInPartsAndReadsNothingAfterIt) {
  std::vector<std::byte> words = hello(token(), 1);
  const std::vector<std::byte> late(words.end() - 5, words.end());
  words.resize(words.size() - 5);
  TcpSocket slow = knock(door_, words);
  EXPECT_TRUE(door_.admit().empty());
  slow.send(late, bytes_of("more"));
  auto guests = let_in(door_, 1);
  ASSERT_EQ(guests.size(), 1U);
  std::vector<std::byte> more(10);
  EXPECT_EQ(guests[0].socket.receive(more), 4);
}

// Random kinds of strangers, more than the door has room for, which all stay connected.
TEST_P(Door, IsOpenToRanksHoweverManyStrangersStandThere) {
  allow_many_sockets();
  constexpr int64_t crowd = 2500, most_inside = 1024;
  const int64_t files_before = num_open_files();
  std::mt19937_64 chance(5);
  std::vector<TcpSocket> strangers;
  for (int64_t i = 0; i < crowd; ++i) {
    const std::vector<std::byte> ours = hello(token(), 1);
    switch (chance() % 5) {
      case 0:
        strangers.push_back(knock(door_, bytes_of("GET / HTTP/1.1\r\nHost: rank-0\r\n\r\n")));
        break;
      case 1:
        strangers.push_back(knock(door_, hello(make_token(), 1)));
        break;
      case 2:  // a part of the hello, which does not show yet that it is a stranger
        strangers.push_back(knock(door_, {ours.begin(), ours.begin() + static_cast<int>(chance() % ours.size())}));
        break;
      default:
        strangers.push_back(knock(door_, {}));
    }
    EXPECT_TRUE(door_.admit().empty());
  }
  EXPECT_LE(num_open_files() - files_before - crowd, most_inside);
  // The rank must be admitted at once, not only after the other connections have timed out.
  const TcpSocket rank = knock(door_, hello(token(), 1));
  std::vector<TcpDoor::Guest> guests;
  for (int looks = 0; looks < 10 && guests.empty(); ++looks) guests = door_.admit();
  EXPECT_EQ(guests.size(), 1U);
}

TEST_P(Door, HasTheAddressThatItWasAskedForAndNoOther) {
  EXPECT_EQ(door_.address().host, GetParam());
  const TcpSocket guest = knock(door_, {});
  EXPECT_EQ(own_host_of(guest), GetParam());
  EXPECT_NE(::fcntl(guest.descriptor(), F_GETFD) & FD_CLOEXEC, 0);
}

INSTANTIATE_TEST_SUITE_P(hosts, Door, testing::Values("127.0.0.1", "::1"), [](const auto& host) {
  return std::string(std::string_view(host.param) == "::1" ? "ipv6" : "ipv4");
});

TEST(Addresses, ThatAreNotHereAreRefused) {
  EXPECT_THROW(TcpDoor("192.0.2.1", token(), 2), UserError);  // from the block for documentation, RFC 5737
  EXPECT_THROW(own_host_towards("no-such-host.invalid", 80), UserError);
}

TEST(Addresses, ThatAreOfThisMachineAloneStaySo) {
  EXPECT_EQ(own_host_towards("127.0.0.1", 80), "127.0.0.1");
  EXPECT_EQ(own_host_towards("127.0.0.9", 80).substr(0, 4), "127.");
  EXPECT_EQ(own_host_towards("::1", 80), "::1");
  const std::string own = own_host_towards("localhost", 80);
  EXPECT_TRUE(own == "::1" || own == "127.0.0.1") << own;
}

TEST(Listeners, AreWaitedForUntilTheyAreThereOrItIsUseless) {
  const TcpDoor door("127.0.0.1", token(), 2);
  EXPECT_TRUE(wait_for_listener("127.0.0.1", door.address().port, 10));
  int64_t free_port = 0;
  {
    const TcpDoor gone("127.0.0.1", token(), 2);
    free_port = gone.address().port;
  }
  EXPECT_FALSE(wait_for_listener("127.0.0.1", free_port, 0.1));
  int64_t asked = 0;
  EXPECT_FALSE(wait_for_listener("127.0.0.1", free_port, 1000, [&] { return ++asked == 3; }));
  EXPECT_FALSE(wait_for_listener("no-such-host.invalid", 80, 1000, [] { return true; }));
}

TEST(Ports, AreTakenAtOneAddressWhereItIsANumber) {
  const TcpSocket taken = bind_to("127.0.0.1", 0);
  ASSERT_TRUE(taken.is_open());
  EXPECT_EQ(own_host_of(taken), "127.0.0.1");
  EXPECT_FALSE(bind_to("192.0.2.1", 0).is_open());
  EXPECT_FALSE(bind_to("localhost", 0).is_open()) << "which of its addresses?";
}

TEST(Addresses, OfOneSOwnNameLeadOutWhereAnythingDoes) {
  EXPECT_NE(own_host_towards("127.0.0.1", 80), "");
  EXPECT_NE(make_token(), make_token());
}

}  // namespace
}  // namespace copus
