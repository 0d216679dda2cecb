// The text by which a process tells others, at a meeting place that all know, where they can connect to it.
#pragma once

#include <string>

#include "copus/comm/messages/tcp_socket.h"

namespace copus {

struct TcpPlace {
  TcpAddress address;
  std::string token;  // the job's secret, for those who do not have it yet; otherwise empty
};

std::string to_text(const TcpPlace& place);

// Reads it back. Throws UserError, which names whose place it is, where the text is none: another job or program may
// use the meeting place too. The message does not repeat the text, which may hold a secret.
TcpPlace read_place(const std::string& text, const std::string& whose, bool with_token);

}  // namespace copus
