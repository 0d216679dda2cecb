#include "copus/comm/messages/tcp_socket.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <iterator>
#include <memory>
#include <optional>
#include <thread>
#include <utility>

#include "copus/base/error.h"

namespace copus {

namespace {

using Clock = std::chrono::steady_clock;

// A connection without a complete hello is closed after this time.
constexpr auto longest_hello = std::chrono::seconds(5);
// The largest number of accepted connections that have not yet sent the job's first message, the hello. Moreover, they
// may use at most a quarter of the files that this process may open. At the limit, each new connection closes the
// oldest of them.
constexpr size_t most_strangers = 1024;
constexpr size_t share_of_files = 4;
// The number of new or active connections without a hello that are handled before messages are handled again.
constexpr int strangers_of_a_turn = 64;
constexpr int backlog = 4096;
constexpr int poll_milliseconds = 25;
// Connecting to a machine that does not answer at all is retried after this time.
constexpr double longest_attempt_seconds = 1;
constexpr auto between_attempts = std::chrono::milliseconds(50);

constexpr std::string_view greeting = "copus 1 ";

struct AnyAddress {
  sockaddr_storage storage{};
  socklen_t length = sizeof(sockaddr_storage);
  sockaddr* get() { return reinterpret_cast<sockaddr*>(&storage); }
};

// Returns at least one address. Throws UserError if there is none.
std::vector<AnyAddress> resolve_all(const std::string& host, int64_t port, int flags) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = flags;
  addrinfo* found = nullptr;
  const int error = ::getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &found);
  if (error != 0) throw UserError(concat("the host ", host, " is not known here: ", ::gai_strerror(error)));
  const std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)> kept(found, &::freeaddrinfo);
  std::vector<AnyAddress> all;
  for (const addrinfo* each = found; each != nullptr; each = each->ai_next) {
    AnyAddress& address = all.emplace_back();
    std::memcpy(&address.storage, each->ai_addr, each->ai_addrlen);
    address.length = each->ai_addrlen;
  }
  return all;
}

// Returns no address if the host is unknown, because its name may become known when its machine starts.
std::vector<AnyAddress> addresses_now(const std::string& host, int64_t port) {
  try {
    return resolve_all(host, port, 0);
  } catch (const UserError&) {
    return {};
  }
}

AnyAddress resolve(const std::string& host, int64_t port, int flags) { return resolve_all(host, port, flags).front(); }

bool is_number(const std::string& host) {
  in6_addr address{};
  return ::inet_pton(AF_INET, host.c_str(), &address) == 1 || ::inet_pton(AF_INET6, host.c_str(), &address) == 1;
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

// The address of the first interface other than loopback.
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
  while (::poll(&descriptor, 1, poll_milliseconds) <= 0) {  // a signal may interrupt it
    if (Clock::now() > end || (is_useless && is_useless())) return false;
  }
  int error = 0;
  socklen_t length = sizeof error;
  return ::getsockopt(socket.descriptor(), SOL_SOCKET, SO_ERROR, &error, &length) == 0 && error == 0;
}

bool wait_for_listener(const std::string& host, int64_t port, double seconds, const std::function<bool()>& is_useless) {
  const auto listens = [&](AnyAddress& address) {
    const TcpSocket attempt(::socket(address.storage.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    if (!attempt.is_open()) return false;  // a kind of address that this machine lacks
    const bool begun = ::connect(attempt.descriptor(), address.get(), address.length) == 0 || errno == EINPROGRESS;
    if (!begun || !finish_connecting(attempt, longest_attempt_seconds, is_useless)) return false;
    // If the system happens to choose the target port for this end too, the socket is connected to itself.
    const TcpAddress own = own_address_of(attempt.descriptor());
    return own.port != port || own.host != host_of(address.get(), address.length);
  };
  const auto end = Clock::now() + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds));
  while (true) {
    std::vector<AnyAddress> addresses = addresses_now(host, port);
    if (std::ranges::any_of(addresses, listens)) return true;
    if (Clock::now() > end || (is_useless && is_useless())) return false;
    std::this_thread::sleep_for(between_attempts);
  }
}

std::string own_host_towards(const std::string& host, int64_t port) {
  AnyAddress peer = resolve(host, port, 0);
  // Connecting a datagram socket only chooses the interface and sends nothing.
  const TcpSocket probe = open_socket(peer.storage.ss_family, SOCK_DGRAM);
  if (::connect(probe.descriptor(), peer.get(), peer.length) != 0) {
    throw UserError(concat("no network of this machine leads to ", host, ": ", std::strerror(errno)));
  }
  const std::string own = own_host_of(probe);
  const bool only_here = own == "::1" || own.starts_with("127.");
  const bool is_meant = is_number(host) || host == "localhost";
  return only_here && !is_meant ? host_of_an_interface().value_or(own) : own;
}

TcpSocket bind_to(const std::string& host, int64_t port) {
  if (!is_number(host)) return TcpSocket();
  AnyAddress own = resolve(host, port, AI_NUMERICHOST);
  TcpSocket result = open_socket(own.storage.ss_family, SOCK_STREAM);
  const int on = 1;
  ::setsockopt(result.descriptor(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  if (::bind(result.descriptor(), own.get(), own.length) != 0) return TcpSocket();
  return result;
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

// Consists of the greeting, the token, and the rank in eight bytes.
std::vector<std::byte> hello(const std::string& token, int64_t rank) {
  const std::string text = std::string(greeting) + token;
  std::vector<std::byte> result(text.size() + sizeof rank);
  std::memcpy(result.data(), text.data(), text.size());
  std::memcpy(result.data() + text.size(), &rank, sizeof rank);
  return result;
}

TcpDoor::TcpDoor(const std::string& host, std::string token, int64_t num_ranks)
    : token_(std::move(token)), num_ranks_(num_ranks), visitors_(::epoll_create1(EPOLL_CLOEXEC)) {
  COPUS_CHECK(token_.size() == token_letters, "a token of ", token_.size(), " letters");
  AnyAddress own = resolve(host, 0, AI_NUMERICHOST);
  listener_ = open_socket(own.storage.ss_family, SOCK_STREAM);
  if (::bind(listener_.descriptor(), own.get(), own.length) != 0 || ::listen(listener_.descriptor(), backlog) != 0) {
    throw UserError(concat("cannot listen for other ranks at ", host, ": ", std::strerror(errno)));
  }
  address_ = own_address_of(listener_.descriptor());
  rlimit files{};
  most_strangers_ = ::getrlimit(RLIMIT_NOFILE, &files) == 0
                        ? std::clamp<size_t>(files.rlim_cur / share_of_files, 1, most_strangers)
                        : most_strangers;
  watch(listener_, nullptr);
}

void TcpDoor::watch(const TcpSocket& socket, Stranger* whose) const {
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.ptr = whose;
  const int added = ::epoll_ctl(visitors_.descriptor(), EPOLL_CTL_ADD, socket.descriptor(), &event);
  COPUS_CHECK(added == 0, std::strerror(errno));
}

std::vector<TcpDoor::Guest> TcpDoor::admit() {
  std::vector<Guest> guests;
  std::array<epoll_event, strangers_of_a_turn> events{};
  const int count = ::epoll_wait(visitors_.descriptor(), events.data(), strangers_of_a_turn, 0);
  bool somebody_comes = false;
  for (int i = 0; i < count; ++i) {
    auto* const stranger = static_cast<Stranger*>(events[i].data.ptr);
    somebody_comes = somebody_comes || stranger == nullptr;
    if (stranger != nullptr) hear(stranger->place, guests);
  }
  // Accepting comes last, because it may close some of the connections handled above.
  if (somebody_comes) open_to_strangers(guests);
  const auto now = Clock::now();
  while (!strangers_.empty() && now - strangers_.front().since > longest_hello) send_away(strangers_.begin());
  return guests;
}

void TcpDoor::send_away(Place place) {
  ::epoll_ctl(visitors_.descriptor(), EPOLL_CTL_DEL, place->socket.descriptor(), nullptr);
  strangers_.erase(place);
}

// Accepts new connections. A rank sends its hello immediately, so it is admitted at once, however many connections
// without a hello there are.
void TcpDoor::open_to_strangers(std::vector<Guest>& guests) {
  for (int i = 0; i < strangers_of_a_turn; ++i) {
    TcpSocket socket(::accept4(listener_.descriptor(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (!socket.is_open()) return;
    send_at_once(socket);
    if (strangers_.size() >= most_strangers_) send_away(strangers_.begin());
    strangers_.push_back({std::move(socket), {}, Clock::now(), {}});
    const Place place = std::prev(strangers_.end());
    place->place = place;
    watch(place->socket, &*place);
    hear(place, guests);
  }
}

void TcpDoor::hear(Place place, std::vector<Guest>& guests) {
  const Judgement judgement = judge(*place);
  if (judgement == Judgement::unknown) return;
  if (judgement == Judgement::unwelcome) return send_away(place);
  int64_t rank = 0;
  std::memcpy(&rank, place->said.data() + place->said.size() - sizeof rank, sizeof rank);
  ::epoll_ctl(visitors_.descriptor(), EPOLL_CTL_DEL, place->socket.descriptor(), nullptr);
  guests.push_back({rank, std::move(place->socket)});
  strangers_.erase(place);
}

// Reads no byte beyond the hello. The duration and the content of the answer must not show how much of the token was
// right.
TcpDoor::Judgement TcpDoor::judge(Stranger& stranger) const {
  const std::vector<std::byte> expected = hello(token_, 0);
  const size_t heard = stranger.said.size();
  stranger.said.resize(expected.size());
  const int64_t more = stranger.socket.receive(std::span(stranger.said).subspan(heard));
  if (more < 0) return Judgement::unwelcome;
  stranger.said.resize(heard + more);
  const std::span<const std::byte> said(stranger.said);
  const size_t greeted = std::min(said.size(), greeting.size());
  if (std::memcmp(said.data(), greeting.data(), greeted) != 0) return Judgement::unwelcome;
  if (said.size() < expected.size()) return Judgement::unknown;
  const size_t before_rank = expected.size() - sizeof(int64_t);
  std::byte difference{};
  for (size_t i = 0; i < before_rank; ++i) difference |= said[i] ^ expected[i];
  int64_t rank = 0;
  std::memcpy(&rank, said.data() + before_rank, sizeof rank);
  const bool knows = difference == std::byte{};
  return knows && rank >= 0 && rank < num_ranks_ ? Judgement::guest : Judgement::unwelcome;
}

void TcpDoor::add_descriptors(std::vector<pollfd>& descriptors) const {
  descriptors.push_back({visitors_.descriptor(), POLLIN, 0});
}

}  // namespace copus
