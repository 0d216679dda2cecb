// Sends one group's messages over TCP.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "copus/comm/messages/message_transport.h"
#include "copus/comm/messages/tcp_connections.h"
#include "copus/comm/messages/tcp_health.h"

namespace copus {

class TcpTransport final : public MessageTransport {
 public:
  // `ranks`: the group in world ranks; `rank`: this rank's position among them; `group`: a unique number.
  TcpTransport(std::vector<int64_t> ranks, int64_t rank, uint64_t group, TcpConnections& connections, TcpHealth& health,
               double wait_seconds);

  bool try_send(const void* data, int64_t bytes, int64_t to) override;

 private:
  class TcpMessages;

  std::unique_ptr<Messages> start(Channel channel) override;
  TcpStream stream(int64_t member, Channel channel) const;

  const uint64_t group_;
  TcpConnections& connections_;
};

}  // namespace copus
