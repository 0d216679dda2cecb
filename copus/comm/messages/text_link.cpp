#include "copus/comm/messages/text_link.h"

#include <array>
#include <cstdint>
#include <cstring>

namespace copus {

namespace {

// Each text is preceded by its length and its kind.
constexpr size_t header_bytes = sizeof(uint32_t) + 1;
constexpr uint32_t longest_text = 64 << 20;
constexpr size_t bytes_at_a_time = 16 << 10;

}  // namespace

void TextLink::send(char kind, std::string_view content) {
  const auto length = static_cast<uint32_t>(content.size());
  const size_t begin = outgoing_.size();
  outgoing_.resize(begin + header_bytes + content.size());
  std::memcpy(outgoing_.data() + begin, &length, sizeof length);
  outgoing_[begin + sizeof length] = static_cast<std::byte>(kind);
  std::memcpy(outgoing_.data() + begin + header_bytes, content.data(), content.size());
}

void TextLink::exchange() {
  if (!outgoing_.empty() && !over_) {
    const int64_t sent = socket_.send(outgoing_);
    if (sent > 0) outgoing_.erase(outgoing_.begin(), outgoing_.begin() + sent);
    // The other end is gone. What is still to be sent is dropped, but the last received texts may still be read.
    if (sent < 0) outgoing_.clear();
  }
  // Usually nothing has arrived, so the buffer is not zeroed.
  std::array<std::byte, bytes_at_a_time> received;
  while (!over_) {
    const int64_t bytes = socket_.receive(received);
    if (bytes < 0) over_ = true;
    if (bytes <= 0) return;
    incoming_.insert(incoming_.end(), received.begin(), received.begin() + bytes);
  }
}

std::optional<TextLink::Text> TextLink::next() {
  if (incoming_.size() < header_bytes) return std::nullopt;
  uint32_t length = 0;
  std::memcpy(&length, incoming_.data(), sizeof length);
  if (length > longest_text) {
    over_ = garbled_ = true;
    return std::nullopt;
  }
  if (incoming_.size() < header_bytes + length) return std::nullopt;
  Text text{static_cast<char>(incoming_[sizeof length]), std::string(length, '\0')};
  std::memcpy(text.content.data(), incoming_.data() + header_bytes, length);
  incoming_.erase(incoming_.begin(), incoming_.begin() + static_cast<std::ptrdiff_t>(header_bytes + length));
  return text;
}

}  // namespace copus
