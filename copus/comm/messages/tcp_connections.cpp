#include "copus/comm/messages/tcp_connections.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "copus/base/error.h"
#include "copus/comm/background_thread.h"

namespace copus {

namespace {

// A frame is long enough to use the bandwidth, and short enough that other streams get their turn soon.
constexpr int64_t longest_frame = 256 << 10;
// A receiver acknowledges in steps: it may have consumed this many bytes without telling the sender.
constexpr int64_t untold_bytes = TcpConnections::window_bytes / 4;
// The number of bytes to read from one connection before the next one gets its turn.
constexpr int64_t bytes_of_a_turn = 4 << 20;
// How often to check connections to the door that have not sent the hello.
constexpr int idle_poll_milliseconds = 1000;

template <class Header>
std::span<std::byte> bytes_of(Header& header) {
  return std::as_writable_bytes(std::span(&header, 1));
}

}  // namespace

struct TcpConnections::Message {
  const TcpStream stream;
  const std::byte* from = nullptr;  // for a sent message
  std::byte* const to = nullptr;    // for a received message
  const int64_t bytes = 0;
  std::vector<std::byte> kept = {};  // if we own the data at `from`
  int64_t moved = 0;                 // bytes sent or received so far
  bool done = false;
  std::string mistake = {};  // an error that ends the message
};

TcpConnections::TcpConnections(int64_t rank, std::vector<TcpAddress> addresses, TcpDoor&& door)
    : rank_(rank),
      addresses_(std::move(addresses)),
      token_(door.token()),
      door_(std::move(door)),
      bell_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  COPUS_CHECK(bell_.is_open(), std::strerror(errno));
  thread_ = background_thread([this] { run(); });
}

TcpConnections::~TcpConnections() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  wake();
  thread_.join();
}

TcpConnections::Handle TcpConnections::send(const TcpStream& stream, const std::byte* data, int64_t bytes) {
  auto message = std::make_shared<Message>(Message{stream, data, nullptr, bytes});
  const std::lock_guard lock(mutex_);
  enqueue(message);
  return message;
}

bool TcpConnections::try_send(const TcpStream& stream, const std::byte* data, int64_t bytes) {
  const std::lock_guard lock(mutex_);
  const OutStream& out = link_to(stream.peer).streams[{stream.group, stream.channel}];
  if (bytes > out.may_send - out.waiting_bytes) return false;
  auto message = std::make_shared<Message>(Message{stream, nullptr, nullptr, bytes, {data, data + bytes}});
  message->from = message->kept.data();
  enqueue(std::move(message));
  return true;
}

TcpConnections::Handle TcpConnections::receive(const TcpStream& stream, std::byte* data, int64_t bytes) {
  auto message = std::make_shared<Message>(Message{stream, nullptr, data, bytes});
  const std::lock_guard lock(mutex_);
  InStream& in = incoming_[stream];
  if (in.early.empty()) {
    in.awaited.push_back(message);
    return message;
  }
  // If this check fails, the thread continues to store incoming data in the message that has already begun to arrive.
  COPUS_CHECK(in.early.front().bytes == bytes, "rank ", stream.peer, " sent ", in.early.front().bytes, " bytes, rank ",
              rank_, " expects ", bytes);
  const Early early = std::move(in.early.front());
  in.early.pop_front();
  const auto come = std::ssize(early.content);
  if (come > 0) std::memcpy(data, early.content.data(), early.content.size());
  message->moved = come;
  message->done = come == bytes;
  if (!message->done) in.awaited.push_back(message);
  in.early_bytes -= come;
  take(stream, in, come);
  return message;
}

bool TcpConnections::wait(std::span<const Handle> messages, std::chrono::milliseconds longest) {
  std::unique_lock lock(mutex_);
  return changed_.wait_for(lock, longest, [&] {
    return std::all_of(messages.begin(), messages.end(), [](const Handle& message) {
      COPUS_CHECK(message->mistake.empty(), message->mistake);
      return message->done;
    });
  });
}

TcpConnections::Missing TcpConnections::missing(std::span<const Handle> messages) {
  const std::lock_guard lock(mutex_);
  for (const Handle& message : messages) {
    if (message->done) continue;
    const auto found = lost_.find(message->stream.peer);
    if (found == lost_.end()) return {message->stream.peer, std::nullopt};
    return {message->stream.peer, found->second};
  }
  return {rank_, std::nullopt};
}

void TcpConnections::give_up(std::span<const Handle> messages) {
  const std::lock_guard lock(mutex_);
  for (const Handle& message : messages) {
    if (message->done) continue;
    const TcpStream& stream = message->stream;
    if (message->to != nullptr) {
      std::erase(incoming_[stream].awaited, message);
    } else {
      std::erase(out_.at(stream.peer).streams.at({stream.group, stream.channel}).waiting, message);
    }
    lose(stream.peer);
  }
}

TcpConnections::OutLink& TcpConnections::link_to(int64_t peer) {
  OutLink& link = out_[peer];
  if (!link.over && !link.socket.is_open()) {
    link.socket = start_connecting(addresses_[peer]);
    link.greeting = hello(token_, rank_);
  }
  return link;
}

// Sends as much as the connection accepts on the caller's thread, which saves a switch to the other thread.
void TcpConnections::enqueue(Handle message) {
  const TcpStream stream = message->stream;
  OutLink& link = link_to(stream.peer);
  OutStream& out = link.streams[{stream.group, stream.channel}];
  out.waiting_bytes += message->bytes;
  out.waiting.push_back(std::move(message));
  write(stream.peer, link);
  if (link.sending != nullptr || !link.greeting.empty()) wake();
}

// Chooses the next stream to send a frame: the streams of a connection take turns.
TcpConnections::OutStream* TcpConnections::next_to_send(OutLink& link) {
  auto next = link.streams.upper_bound(link.last);
  for (size_t i = 0; i < link.streams.size(); ++i, ++next) {
    if (next == link.streams.end()) next = link.streams.begin();
    OutStream& candidate = next->second;
    if (candidate.waiting.empty() || candidate.may_send == 0) continue;
    link.last = next->first;
    return &candidate;
  }
  return nullptr;
}

void TcpConnections::begin_frame(OutLink& link) {
  link.sending = next_to_send(link);
  if (link.sending == nullptr) return;
  const Message& message = *link.sending->waiting.front();
  link.frame_left = std::min({message.bytes - message.moved, link.sending->may_send, longest_frame});
  link.sending->may_send -= link.frame_left;
  link.header = {message.stream.group, message.bytes, message.stream.channel, static_cast<uint32_t>(link.frame_left)};
  link.header_sent = 0;
}

void TcpConnections::write(int64_t peer, OutLink& link) {
  while (!link.over) {
    if (!link.greeting.empty()) {
      const int64_t sent = link.socket.send(link.greeting);
      if (sent < 0) return lose(peer);
      link.greeting.erase(link.greeting.begin(), link.greeting.begin() + sent);
      if (!link.greeting.empty()) return;
    }
    if (link.sending == nullptr) begin_frame(link);
    if (link.sending == nullptr) return;
    Message& message = *link.sending->waiting.front();
    const std::span<std::byte> header = bytes_of(link.header).subspan(link.header_sent);
    const int64_t sent = link.socket.send(header, std::span(message.from + message.moved, link.frame_left));
    if (sent < 0) return lose(peer);
    if (sent == 0) return;
    const int64_t of_header = std::min(sent, std::ssize(header));
    link.header_sent += of_header;
    const int64_t of_body = sent - of_header;
    message.moved += of_body;
    link.frame_left -= of_body;
    link.sending->waiting_bytes -= of_body;
    if (link.header_sent < sizeof(FrameHeader) || link.frame_left > 0) continue;
    if (message.moved == message.bytes) {
      message.done = true;
      link.sending->waiting.pop_front();
      changed_.notify_all();
    }
    link.sending = nullptr;
  }
}

void TcpConnections::read_answers(int64_t peer, OutLink& link) {
  while (!link.over) {
    const int64_t received = link.socket.receive(bytes_of(link.answer).subspan(link.answer_bytes));
    if (received < 0) return lose(peer);
    if (received == 0) return;
    link.answer_bytes += received;
    if (link.answer_bytes < sizeof(FrameHeader)) continue;
    link.answer_bytes = 0;
    const auto stream = link.streams.find({link.answer.group, link.answer.channel});
    const int64_t taken = link.answer.message_bytes;
    if (stream == link.streams.end() || taken <= 0 || taken > window_bytes - stream->second.may_send) {
      return lose(peer);
    }
    stream->second.may_send += taken;
  }
}

void TcpConnections::admit_guests() {
  if (!door_) return;
  for (TcpDoor::Guest& guest : door_->admit()) {
    if (guest.rank == rank_ || in_.contains(guest.rank)) continue;
    in_[guest.rank].socket = std::move(guest.socket);
  }
  if (in_.size() + 1 == addresses_.size()) door_.reset();
}

void TcpConnections::read(int64_t peer, InLink& link) {
  for (int64_t turn = 0; turn < bytes_of_a_turn && !link.over;) {
    int64_t received = 0;
    if (link.stream != nullptr) {
      received = read_body(peer, link);
    } else {
      received = link.socket.receive(bytes_of(link.header).subspan(link.header_bytes));
      if (received > 0) link.header_bytes += received;
      if (link.header_bytes == sizeof(FrameHeader) && !begin_body(peer, link)) received = -1;
    }
    if (received < 0) return lose(peer);
    if (received == 0) return;
    turn += received;
  }
}

// Returns false if the header does not begin a valid frame.
bool TcpConnections::begin_body(int64_t peer, InLink& link) {
  link.header_bytes = 0;
  link.frame_left = link.header.bytes;
  InStream& stream = incoming_[{peer, link.header.group, link.header.channel}];
  link.stream = &stream;
  if (link.frame_left == 0 || link.frame_left > longest_frame) return false;
  if (stream.coming_left == 0) {
    stream.coming_bytes = stream.coming_left = link.header.message_bytes;
    if (stream.awaited.empty()) {
      stream.early.push_back({stream.coming_bytes, {}});
    } else if (Message& message = *stream.awaited.front(); message.bytes != stream.coming_bytes) {
      message.mistake =
          concat("rank ", peer, " sent ", stream.coming_bytes, " bytes, rank ", rank_, " expects ", message.bytes);
      changed_.notify_all();
      return false;
    }
  }
  return link.header.message_bytes == stream.coming_bytes && link.frame_left <= stream.coming_left;
}

int64_t TcpConnections::read_body(int64_t peer, InLink& link) {
  InStream& stream = *link.stream;
  int64_t received = 0;
  if (!stream.awaited.empty()) {
    Message& message = *stream.awaited.front();
    received = link.socket.receive(std::span(message.to + message.moved, link.frame_left));
    if (received <= 0) return received;
    message.moved += received;
    if (message.moved == message.bytes) {
      message.done = true;
      stream.awaited.pop_front();
      changed_.notify_all();
    }
    take({peer, link.header.group, link.header.channel}, stream, received);
  } else {
    std::vector<std::byte>& content = stream.early.back().content;
    const size_t before = content.size();
    content.resize(before + link.frame_left);
    received = link.socket.receive(std::span(content).subspan(before));
    content.resize(before + std::max<int64_t>(received, 0));
    if (received <= 0) return received;
    stream.early_bytes += received;
    if (stream.early_bytes > window_bytes) return -1;
  }
  stream.coming_left -= received;
  link.frame_left -= received;
  if (link.frame_left == 0) link.stream = nullptr;
  return received;
}

// Records that `bytes` of a stream have been consumed. Once enough bytes have been consumed, acknowledges them, so that
// the sender may send as many more.
void TcpConnections::take(const TcpStream& key, InStream& stream, int64_t bytes) {
  stream.taken += bytes;
  const auto link = in_.find(key.peer);
  if (stream.taken < untold_bytes || link == in_.end()) return;
  FrameHeader answer{key.group, std::exchange(stream.taken, 0), key.channel, 0};
  const auto text = bytes_of(answer);
  link->second.answers.insert(link->second.answers.end(), text.begin(), text.end());
  write_answers(key.peer, link->second);
  if (!link->second.answers.empty()) wake();
}

void TcpConnections::write_answers(int64_t peer, InLink& link) {
  if (link.answers.empty() || link.over) return;
  const int64_t sent = link.socket.send(link.answers);
  if (sent < 0) return lose(peer);
  link.answers.erase(link.answers.begin(), link.answers.begin() + sent);
}

// Ends all messages to and from a rank. The thread closes the sockets.
void TcpConnections::lose(int64_t peer) {
  lost_.emplace(peer, std::chrono::steady_clock::now());
  if (const auto out = out_.find(peer); out != out_.end()) out->second.over = true;
  if (const auto in = in_.find(peer); in != in_.end()) in->second.over = true;
  wake();
}

TcpConnections::Watched TcpConnections::watched() {
  Watched result;
  const auto add = [&](auto& links, std::vector<int64_t>& peers, const auto& has_to_send) {
    for (auto& [peer, link] : links) {
      if (link.over) link.socket = TcpSocket();
      if (!link.socket.is_open()) continue;
      const auto events = static_cast<short>(has_to_send(link) ? POLLIN | POLLOUT : POLLIN);
      result.descriptors.push_back({link.socket.descriptor(), events, 0});
      peers.push_back(peer);
    }
  };
  add(in_, result.in, [](const InLink& link) { return !link.answers.empty(); });
  add(out_, result.out, [](const OutLink& link) { return !link.greeting.empty() || link.sending != nullptr; });
  result.descriptors.push_back({bell_.descriptor(), POLLIN, 0});
  if (door_) door_->add_descriptors(result.descriptors);
  return result;
}

void TcpConnections::run() {
  while (true) {
    Watched watched;
    {
      const std::lock_guard lock(mutex_);
      if (stopping_) return;
      watched = this->watched();
    }
    ::poll(watched.descriptors.data(), watched.descriptors.size(), idle_poll_milliseconds);
    const std::lock_guard lock(mutex_);
    uint64_t rings = 0;
    bell_.receive(bytes_of(rings));
    admit_guests();
    auto ready = watched.descriptors.begin();
    for (const int64_t peer : watched.in) {
      if ((ready++)->revents == 0) continue;
      read(peer, in_.at(peer));
      write_answers(peer, in_.at(peer));
    }
    for (const int64_t peer : watched.out) {
      if ((ready++)->revents == 0) continue;
      read_answers(peer, out_.at(peer));
      write(peer, out_.at(peer));
    }
  }
}

void TcpConnections::wake() const {
  const uint64_t once = 1;
  // This can only fail if the bell has already been rung.
  [[maybe_unused]] const ssize_t written = ::write(bell_.descriptor(), &once, sizeof once);
}

}  // namespace copus
