// Sockets between ranks: addresses, connections, and a listening socket (TcpDoor) that admits only ranks of the job.
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

// A numeric IPv4 or IPv6 address, and a port.
struct TcpAddress {
  std::string host;
  int64_t port = 0;
};

// Owns a socket, which exec closes, or no socket. No function blocks.
class TcpSocket {
 public:
  explicit TcpSocket(int descriptor = -1) : descriptor_(descriptor) {}

  int descriptor() const { return descriptor_.number(); }
  bool is_open() const { return descriptor_.is_open(); }

  // send() (`first`, then `second`) and receive() transfer as many bytes as is possible without waiting. They return
  // this number, or -1 if the connection has ended.
  int64_t send(std::span<const std::byte> first, std::span<const std::byte> second = {});
  int64_t receive(std::span<std::byte> data) const;

 private:
  Descriptor descriptor_;
};

// Begins to connect. Once the socket is writable, the attempt has succeeded or failed. Throws UserError for an address
// to which a connection cannot be tried.
TcpSocket start_connecting(const TcpAddress& address);
// Waits for the connection and returns whether it succeeded. Regularly calls `is_useless`, which may end the wait.
bool finish_connecting(const TcpSocket& socket, double seconds, const std::function<bool()>& is_useless = {});
// Waits until a process listens at a host, given by name or number, and returns whether one does. `is_useless` may end
// the wait, as above.
bool wait_for_listener(const std::string& host, int64_t port, double seconds,
                       const std::function<bool()>& is_useless = {});
// Returns the address of this machine from which a host, given by name or number, is reached. If the host is a loopback
// number or "localhost", this is the loopback address. Otherwise it is an address that other machines can reach. (If
// /etc/hosts maps this machine's name to the loopback interface, this is the address of the first other interface.)
// Throws UserError for an unknown host.
std::string own_host_towards(const std::string& host, int64_t port);
// Binds a port at this address of this machine, for a process that will listen there. If the host is not given by
// number, or the port is not available, the returned socket is not open.
TcpSocket bind_to(const std::string& host, int64_t port);
// This machine's address on a connected socket.
std::string own_host_of(const TcpSocket& socket);

// Raises the limit on open files: a rank has two sockets for each rank with which it exchanges messages, and most
// systems allow 1024 by default.
void allow_many_sockets();

inline constexpr size_t token_letters = 32;
// A secret of this many random letters.
std::string make_token();

// What a rank sends first when it connects.
std::vector<std::byte> hello(const std::string& token, int64_t rank);

// A listening socket at one address of this machine. A connection must begin with the job's first message, the hello.
// Connections that begin with anything else are closed. The number of connections that have sent nothing yet is
// limited.
class TcpDoor {
 public:
  // Listens at a free port. Throws UserError if the address is not this machine's.
  TcpDoor(const std::string& host, std::string token, int64_t num_ranks);

  const TcpAddress& address() const { return address_; }
  const std::string& token() const { return token_; }

  struct Guest {
    int64_t rank;
    TcpSocket socket;
  };
  // Returns the ranks that have sent the hello since the last call. Call it when the descriptor is readable, and
  // regularly.
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
  TcpSocket visitors_;  // an epoll instance, so that a check need not visit every connection
  TcpAddress address_;
  std::list<Stranger> strangers_;  // in the order of their arrival
};

}  // namespace copus
