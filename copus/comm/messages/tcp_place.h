// The text with which a process publishes its address at a common meeting place, so that others can connect to it.
#pragma once

#include <string>

#include "copus/comm/messages/tcp_socket.h"

namespace copus {

struct TcpPlace {
  TcpAddress address;
  std::string token;  // the job's secret, if the readers do not have it yet; otherwise empty
};

std::string to_text(const TcpPlace& place);

// Parses the text in which a process published its address. Throws UserError, which names the owner as `whose`, if the
// text is not in the expected form: another job or program probably uses the same meeting place. The error does not
// quote the text, which may contain a secret.
TcpPlace read_place(const std::string& text, const std::string& whose, bool with_token);

}  // namespace copus
