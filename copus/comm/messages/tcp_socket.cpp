#include "copus/comm/messages/tcp_socket.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <memory>
#include <optional>
#include <utility>

#include "copus/base/error.h"

namespace copus {

namespace {

using Clock = std::chrono::steady_clock;

// Whoever has not said hello after this time, or comes when so many others have not, is sent away.
constexpr auto longest_hello = std::chrono::seconds(5);
constexpr size_t most_strangers = 1024;
constexpr int backlog = 4096;
constexpr int poll_milliseconds = 25;

constexpr std::string_view greeting = "copus 1 ";

struct AnyAddress {
  sockaddr_storage storage{};
  socklen_t length = sizeof(sockaddr_storage);
  sockaddr* get() { return reinterpret_cast<sockaddr*>(&storage); }
};

AnyAddress resolve(const std::string& host, int64_t port, int flags) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = flags;
  addrinfo* found = nullptr;
  const int error = ::getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &found);
  if (error != 0) throw UserError(concat("the host ", host, " is not known here: ", ::gai_strerror(error)));
  const std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)> kept(found, &::freeaddrinfo);
  AnyAddress result;
  std::memcpy(&result.storage, found->ai_addr, found->ai_addrlen);
  result.length = found->ai_addrlen;
  return result;
}

std::string host_of(const sockaddr* address, socklen_t length) {
  std::array<char, NI_MAXHOST> host{};
  const int error = ::getnameinfo(address, length, host.data(), host.size(), nullptr, 0, NI_NUMERICHOST);
  COPUS_CHECK(error == 0, ::gai_strerror(error));
  return host.data();
}

TcpAddress own_address_of(int descriptor) {
  AnyAddress own;
  COPUS_CHECK(::getsockname(descriptor, own.get(), &own.length) == 0, std::strerror(errno));
  const bool is_ipv6 = own.storage.ss_family == AF_INET6;
  const in_port_t port = is_ipv6 ? reinterpret_cast<const sockaddr_in6*>(own.get())->sin6_port
                                 : reinterpret_cast<const sockaddr_in*>(own.get())->sin_port;
  return {host_of(own.get(), own.length), ntohs(port)};
}

TcpSocket open_socket(int family, int kind) {
  TcpSocket result(::socket(family, kind | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!result.is_open()) throw UserError(concat("cannot open a socket: ", std::strerror(errno)));
  return result;
}

// The address of the first interface that leads out of this machine.
std::optional<std::string> host_of_an_interface() {
  ifaddrs* list = nullptr;
  if (::getifaddrs(&list) != 0) return std::nullopt;
  const std::unique_ptr<ifaddrs, decltype(&::freeifaddrs)> kept(list, &::freeifaddrs);
  for (const ifaddrs* each = list; each != nullptr; each = each->ifa_next) {
    const bool is_up = (each->ifa_flags & IFF_UP) != 0 && (each->ifa_flags & IFF_LOOPBACK) == 0;
    if (is_up && each->ifa_addr != nullptr && each->ifa_addr->sa_family == AF_INET) {
      return host_of(each->ifa_addr, sizeof(sockaddr_in));
    }
  }
  return std::nullopt;
}

void send_at_once(const TcpSocket& socket) {
  const int on = 1;
  ::setsockopt(socket.descriptor(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
}

bool would_wait() { return errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR || errno == ENOTCONN; }

}  // namespace

int64_t TcpSocket::send(std::span<const std::byte> first, std::span<const std::byte> second) {
  const auto part = [](std::span<const std::byte> data) {
    return iovec{const_cast<std::byte*>(data.data()), data.size()};  // sendmsg writes nothing there
  };
  std::array<iovec, 2> parts{part(first), part(second)};
  msghdr message{};
  message.msg_iov = parts.data();
  message.msg_iovlen = parts.size();
  const ssize_t sent = ::sendmsg(descriptor(), &message, MSG_NOSIGNAL);
  return sent >= 0 ? sent : would_wait() ? 0 : -1;
}

int64_t TcpSocket::receive(std::span<std::byte> data) const {
  const ssize_t received = ::read(descriptor(), data.data(), data.size());
  if (received == 0 && !data.empty()) return -1;
  return received >= 0 ? received : would_wait() ? 0 : -1;
}

TcpSocket start_connecting(const TcpAddress& address) {
  AnyAddress peer = resolve(address.host, address.port, AI_NUMERICHOST);
  TcpSocket result = open_socket(peer.storage.ss_family, SOCK_STREAM);
  send_at_once(result);
  if (::connect(result.descriptor(), peer.get(), peer.length) != 0 && errno != EINPROGRESS) {
    throw UserError(concat("cannot reach ", address.host, ": ", std::strerror(errno)));
  }
  return result;
}

bool finish_connecting(const TcpSocket& socket, double seconds, const std::function<bool()>& is_useless) {
  pollfd descriptor{socket.descriptor(), POLLOUT, 0};
  const auto end = Clock::now() + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds));
  while (::poll(&descriptor, 1, poll_milliseconds) <= 0) {  // a signal may end it early
    if (Clock::now() > end || (is_useless && is_useless())) return false;
  }
  int error = 0;
  socklen_t length = sizeof error;
  return ::getsockopt(socket.descriptor(), SOL_SOCKET, SO_ERROR, &error, &length) == 0 && error == 0;
}

std::string own_host_towards(const std::string& host, int64_t port) {
  AnyAddress peer = resolve(host, port, 0);
  // Connecting a datagram socket only chooses the interface, and sends nothing.
  const TcpSocket probe = open_socket(peer.storage.ss_family, SOCK_DGRAM);
  if (::connect(probe.descriptor(), peer.get(), peer.length) != 0) {
    throw UserError(concat("no network of this machine leads to ", host, ": ", std::strerror(errno)));
  }
  const std::string own = own_host_of(probe);
  const bool only_here = own == "::1" || own.starts_with("127.");
  return only_here ? host_of_an_interface().value_or(own) : own;
}

std::string own_host_of(const TcpSocket& socket) { return own_address_of(socket.descriptor()).host; }

void allow_many_sockets() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  limit.rlim_cur = limit.rlim_max;
  ::setrlimit(RLIMIT_NOFILE, &limit);
}

std::string make_token() {
  unsigned char random[token_letters];
  COPUS_CHECK(::getrandom(random, sizeof random, 0) == static_cast<ssize_t>(sizeof random), std::strerror(errno));
  std::string token;
  for (const unsigned char each : random) token += static_cast<char>('a' + each % 16);
  return token;
}

// It is the greeting, the token, and the rank in eight bytes.
std::vector<std::byte> hello(const std::string& token, int64_t rank) {
  const std::string text = std::string(greeting) + token;
  std::vector<std::byte> result(text.size() + sizeof rank);
  std::memcpy(result.data(), text.data(), text.size());
  std::memcpy(result.data() + text.size(), &rank, sizeof rank);
  return result;
}

TcpDoor::TcpDoor(const std::string& host, std::string token, int64_t num_ranks)
    : token_(std::move(token)), num_ranks_(num_ranks) {
  COPUS_CHECK(token_.size() == token_letters, "a token of ", token_.size(), " letters");
  AnyAddress own = resolve(host, 0, AI_NUMERICHOST);
  listener_ = open_socket(own.storage.ss_family, SOCK_STREAM);
  if (::bind(listener_.descriptor(), own.get(), own.length) != 0 || ::listen(listener_.descriptor(), backlog) != 0) {
    throw UserError(concat("cannot listen for other ranks at ", host, ": ", std::strerror(errno)));
  }
  address_ = own_address_of(listener_.descriptor());
}

std::vector<TcpDoor::Guest> TcpDoor::admit() {
  while (strangers_.size() < most_strangers) {
    TcpSocket socket(::accept4(listener_.descriptor(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (!socket.is_open()) break;
    send_at_once(socket);
    strangers_.push_back({std::move(socket), {}, Clock::now()});
  }
  std::vector<Guest> guests;
  std::erase_if(strangers_, [&](Stranger& stranger) {
    const Judgement judgement = judge(stranger);
    if (judgement == Judgement::guest) {
      int64_t rank = 0;
      std::memcpy(&rank, stranger.said.data() + stranger.said.size() - sizeof rank, sizeof rank);
      guests.push_back({rank, std::move(stranger.socket)});
    }
    return judgement != Judgement::unknown;
  });
  return guests;
}

// Reads no byte beyond the hello.
TcpDoor::Judgement TcpDoor::judge(Stranger& stranger) {
  const std::vector<std::byte> expected = hello(token_, 0);
  const size_t heard = stranger.said.size();
  stranger.said.resize(expected.size());
  const int64_t more = stranger.socket.receive(std::span(stranger.said).subspan(heard));
  if (more < 0) return Judgement::unwelcome;
  stranger.said.resize(heard + more);
  if (stranger.said.size() < expected.size()) {
    return Clock::now() - stranger.since > longest_hello ? Judgement::unwelcome : Judgement::unknown;
  }
  int64_t rank = 0;
  std::memcpy(&rank, stranger.said.data() + expected.size() - sizeof rank, sizeof rank);
  const bool knows = std::equal(expected.begin(), expected.end() - sizeof rank, stranger.said.begin());
  return knows && rank >= 0 && rank < num_ranks_ ? Judgement::guest : Judgement::unwelcome;
}

void TcpDoor::add_descriptors(std::vector<pollfd>& descriptors) const {
  if (strangers_.size() < most_strangers) descriptors.push_back({listener_.descriptor(), POLLIN, 0});
  for (const Stranger& stranger : strangers_) descriptors.push_back({stranger.socket.descriptor(), POLLIN, 0});
}

}  // namespace copus
