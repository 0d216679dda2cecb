// The connection between the launcher that decides for a job and that of another machine. Both send signs of life, and
// count for how long they have heard nothing.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "copus/comm/messages/text_link.h"

namespace copus {

class MachineLink {
 public:
  explicit MachineLink(TcpSocket socket) : link_(std::move(socket)) {}

  // What is said first to the other's door (tcp_socket.h).
  void greet(const std::string& token, int64_t machine) { link_.greet(hello(token, machine)); }
  void send(std::string_view message);
  // Sends and receives what goes without waiting, and a sign of life where it is time. `seconds` after the call before,
  // of which at most half a second counts as silence.
  void exchange(double seconds);
  // The next message that has come.
  std::optional<std::string> next();

  int descriptor() const { return link_.descriptor(); }
  bool is_over() const { return link_.is_over(); }
  bool is_garbled() const { return link_.is_garbled(); }
  double silent_seconds() const { return silent_seconds_; }

 private:
  TextLink link_;
  double seconds_since_sign_ = 0;
  double silent_seconds_ = 0;
};

}  // namespace copus
