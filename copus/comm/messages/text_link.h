// Short texts over one connection, each with a letter that says what it is. Nothing here waits.
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

  // Sends bytes before all texts.
  void greet(std::span<const std::byte> hello) { outgoing_.insert(outgoing_.end(), hello.begin(), hello.end()); }
  void send(char kind, std::string_view content);
  // Sends and receives what goes without waiting.
  void exchange();
  // The next text, if all of it has come.
  std::optional<Text> next();

  int descriptor() const { return socket_.descriptor(); }
  bool all_sent() const { return outgoing_.empty(); }
  // Whether the other end is gone, or sends what is no text. What had come before can still be read.
  bool is_over() const { return over_; }
  // Whether it is the latter.
  bool is_garbled() const { return garbled_; }

 private:
  TcpSocket socket_;
  std::vector<std::byte> outgoing_;
  std::vector<std::byte> incoming_;
  bool over_ = false;
  bool garbled_ = false;
};

}  // namespace copus
