// The connection between the deciding launcher of a job and the launcher of another machine. Both launchers send signs
// of life and measure how long the other launcher has been silent.
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

  // Sends the hello for the other launcher's door (tcp_socket.h).
  void greet(const std::string& token, int64_t machine) { link_.greet(hello(token, machine)); }
  void send(std::string_view message);
  // Sends and receives as much as is possible without waiting, and sends a sign of life when it is due. `seconds` is
  // the time since the previous call, of which at most half a second is counted as silence.
  void exchange(double seconds);
  // Returns the next received message.
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
