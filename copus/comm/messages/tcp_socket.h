// Sockets between ranks: addresses, connections, and a door that lets in none but ranks of the job.
#pragma once

#include <poll.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <list>
#include <span>
#include <string>
#include <vector>

#include "copus/comm/descriptor.h"

namespace copus {

// A host as a number, IPv4 or IPv6, and a port.
struct TcpAddress {
  std::string host;
  int64_t port = 0;
};

// Owns a socket, which exec closes, or none. No call of it waits.
class TcpSocket {
 public:
  explicit TcpSocket(int descriptor = -1) : descriptor_(descriptor) {}

  int descriptor() const { return descriptor_.number(); }
  bool is_open() const { return descriptor_.is_open(); }

  // These send (the two one after the other) and receive as much as goes without waiting, and return how much that was,
  // or -1 when the connection is over.
  int64_t send(std::span<const std::byte> first, std::span<const std::byte> second = {});
  int64_t receive(std::span<std::byte> data) const;

 private:
  Descriptor descriptor_;
};

// Begins to connect. Once the socket can be written to, it is connected or over. Throws UserError for an address that
// cannot be tried.
TcpSocket start_connecting(const TcpAddress& address);
// Waits until it is connected, and says whether it is. `is_useless` is asked now and then, and ends the wait.
bool finish_connecting(const TcpSocket& socket, double seconds, const std::function<bool()>& is_useless = {});
// Waits until a process listens at a host, which is given by name or number, and says whether one does. `is_useless` as
// above.
bool wait_for_listener(const std::string& host, int64_t port, double seconds,
                       const std::function<bool()>& is_useless = {});
// This machine's address on the way to a host, which is given by name or number: the loopback interface's where that
// number is one of this machine alone, or the name "localhost". Other machines may reach the address otherwise, even
// where the host is this machine itself and /etc/hosts gives its name to the loopback interface: then it is that of the
// first other interface. Throws UserError for an unknown host.
std::string own_host_towards(const std::string& host, int64_t port);
// Takes a port at this one address of this machine, for whoever listens there. Not open where the host is not given by
// number, or the port cannot be had there.
TcpSocket bind_to(const std::string& host, int64_t port);
// This machine's address of a socket that is connected.
std::string own_host_of(const TcpSocket& socket);

// A rank has two sockets for each that it exchanges messages with, and most systems allow 1024 unless one asks for
// more.
void allow_many_sockets();

inline constexpr size_t token_letters = 32;
// So many random letters, which nobody else can know.
std::string make_token();

// What a rank says first when it connects.
std::vector<std::byte> hello(const std::string& token, int64_t rank);

// Waits for connections at one address of this machine. Those that do not begin with the job's hello are dropped, and
// never are there many of them.
class TcpDoor {
 public:
  // At a free port. Throws UserError when the host is not this machine's.
  TcpDoor(const std::string& host, std::string token, int64_t num_ranks);

  const TcpAddress& address() const { return address_; }
  const std::string& token() const { return token_; }

  struct Guest {
    int64_t rank;
    TcpSocket socket;
  };
  // Those who have said hello since the last call. To be called when the descriptor can be read from, and now and then.
  std::vector<Guest> admit();
  void add_descriptors(std::vector<pollfd>& descriptors) const;

 private:
  struct Stranger;
  using Place = std::list<Stranger>::iterator;
  struct Stranger {
    TcpSocket socket;
    std::vector<std::byte> said;
    std::chrono::steady_clock::time_point since;
    Place place;
  };
  enum class Judgement { unknown, guest, unwelcome };
  void watch(const TcpSocket& socket, Stranger* whose) const;
  void open_to_strangers(std::vector<Guest>& guests);
  void send_away(Place place);
  void hear(Place place, std::vector<Guest>& guests);
  Judgement judge(Stranger& stranger) const;

  const std::string token_;
  const int64_t num_ranks_;
  size_t most_strangers_ = 0;
  TcpSocket listener_;
  TcpSocket visitors_;  // an epoll instance, so that a look does not ask each of them
  TcpAddress address_;
  std::list<Stranger> strangers_;  // in the order in which they came
};

}  // namespace copus
