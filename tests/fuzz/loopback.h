// A connection to a door of this process, which leaves nothing behind when it ends: thousands of them in a second would
// use up the ports.
#pragma once

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstring>
#include <string_view>

#include "copus/base/error.h"
#include "copus/comm/descriptor.h"

namespace copus {

class LoopbackConnection {
 public:
  explicit LoopbackConnection(int64_t port) : socket_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<in_port_t>(port));
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    // libFuzzer's alarms interrupt it; the connection is then made without it, or is there already.
    int result = 0;
    do {
      result = ::connect(socket_.number(), reinterpret_cast<const sockaddr*>(&address), sizeof address);
    } while (result != 0 && (errno == EINTR || errno == EALREADY));
    COPUS_CHECK(result == 0 || errno == EISCONN, std::strerror(errno));
    const linger at_once{1, 0};
    ::setsockopt(socket_.number(), SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once);
  }

  // Stops where the other end has hung up.
  void send(std::string_view bytes) const {
    while (!bytes.empty()) {
      const ssize_t sent = ::send(socket_.number(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (sent <= 0) return;
      bytes.remove_prefix(static_cast<size_t>(sent));
    }
  }

 private:
  Descriptor socket_;
};

}  // namespace copus
