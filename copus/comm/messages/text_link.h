// Sends and receives short texts over one connection. Each text has a kind, which is one letter. No function blocks.
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "copus/comm/messages/tcp_socket.h"

namespace copus {

class TextLink {
 public:
  explicit TextLink(TcpSocket socket) : socket_(std::move(socket)) {}

  struct Text {
    char kind;
    std::string content;
  };

  // Queues bytes to be sent before all texts.
  void greet(std::span<const std::byte> hello) { outgoing_.insert(outgoing_.end(), hello.begin(), hello.end()); }
  void send(char kind, std::string_view content);
  // Sends and receives as much as is possible without waiting.
  void exchange();
  // Returns the next text, if it has arrived completely.
  std::optional<Text> next();

  int descriptor() const { return socket_.descriptor(); }
  bool all_sent() const { return outgoing_.empty(); }
  // Whether the other end is gone or has sent something that is not a text. Texts received before can still be read.
  bool is_over() const { return over_; }
  // Whether the other end has sent something that is not a text.
  bool is_garbled() const { return garbled_; }

 private:
  TcpSocket socket_;
  std::vector<std::byte> outgoing_;
  std::vector<std::byte> incoming_;
  bool over_ = false;
  bool garbled_ = false;
};

}  // namespace copus
