// Who gets in at a rank's door, and what becomes of the others.
#include "copus/comm/messages/tcp_socket.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/socket.h>

#include <cstring>
#include <string_view>

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

// Says something at the door.
TcpSocket knock(const TcpDoor& door, const std::vector<std::byte>& words) {
  TcpSocket socket = start_connecting(door.address());
  EXPECT_TRUE(finish_connecting(socket, 10));
  EXPECT_EQ(socket.send(words), std::ssize(words));
  return socket;
}

// Those that come in while nothing else is to be seen at the door.
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

// Whether the other end has hung up.
bool is_closed(TcpSocket& socket) {
  pollfd descriptor{socket.descriptor(), POLLIN, 0};
  EXPECT_EQ(::poll(&descriptor, 1, 10'000), 1);
  std::byte byte{};
  return socket.receive({&byte, 1}) < 0;
}

class Door : public testing::TestWithParam<const char*> {
 protected:
  TcpDoor door{GetParam(), token(), 4};
};

TEST_P(Door, lets_in_who_knows_the_token_and_says_which_rank_it_is) {
  const TcpSocket three = knock(door, hello(token(), 3));
  const TcpSocket two = knock(door, hello(token(), 2));
  auto guests = let_in(door, 2);
  ASSERT_EQ(guests.size(), 2U);
  EXPECT_EQ(guests[0].rank + guests[1].rank, 5);
}

TEST_P(Door, turns_away_who_does_not_know_the_token_or_is_no_rank_or_talks_garbage) {
  std::string wrong = token();
  wrong.back() = wrong.back() == 'a' ? 'b' : 'a';
  TcpSocket guessing = knock(door, hello(wrong, 1));
  TcpSocket beyond = knock(door, hello(token(), 4));
  TcpSocket negative = knock(door, hello(token(), -1));
  TcpSocket garbage = knock(door, bytes_of("GET / HTTP/1.1\r\nHost: rank-0\r\nAccept: everything there is\r\n\r\n"));
  {
    const TcpSocket silent = knock(door, {});
  }
  const TcpSocket rank = knock(door, hello(token(), 1));
  EXPECT_EQ(let_in(door, 1).size(), 1U);
  for (TcpSocket* each : {&guessing, &beyond, &negative, &garbage}) EXPECT_TRUE(is_closed(*each));
}

TEST_P(Door, waits_for_a_hello_that_comes_in_parts_and_reads_nothing_after_it) {
  std::vector<std::byte> words = hello(token(), 1);
  const std::vector<std::byte> late(words.end() - 5, words.end());
  words.resize(words.size() - 5);
  TcpSocket slow = knock(door, words);
  EXPECT_TRUE(door.admit().empty());
  slow.send(late, bytes_of("more"));
  auto guests = let_in(door, 1);
  ASSERT_EQ(guests.size(), 1U);
  std::vector<std::byte> more(10);
  EXPECT_EQ(guests[0].socket.receive(more), 4);
}

TEST_P(Door, has_the_address_that_it_was_asked_for_and_no_other) {
  EXPECT_EQ(door.address().host, GetParam());
  const TcpSocket guest = knock(door, {});
  EXPECT_EQ(own_host_of(guest), GetParam());
  EXPECT_NE(::fcntl(guest.descriptor(), F_GETFD) & FD_CLOEXEC, 0);
}

INSTANTIATE_TEST_SUITE_P(hosts, Door, testing::Values("127.0.0.1", "::1"), [](const auto& host) {
  return std::string(std::string_view(host.param) == "::1" ? "ipv6" : "ipv4");
});

TEST(Addresses, that_are_not_here_are_refused) {
  EXPECT_THROW(TcpDoor("192.0.2.1", token(), 2), UserError);  // of the block for documentation, RFC 5737
  EXPECT_THROW(own_host_towards("no-such-host.invalid", 80), UserError);
}

TEST(Addresses, of_one_s_own_name_lead_out_where_anything_does) {
  EXPECT_NE(own_host_towards("127.0.0.1", 80), "");
  EXPECT_NE(make_token(), make_token());
}

}  // namespace
}  // namespace copus
