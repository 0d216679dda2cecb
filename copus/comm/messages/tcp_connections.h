// Sends messages between one rank and all others over TCP. A rank connects to another rank when it first has a message
// for that rank, so a job has only the connections that its groups need. Each direction has its own connection.
//
// Messages of several streams share a connection. They are sent in frames, so that they do not block each other. At
// most window_bytes of each stream may be unacknowledged. The receiver buffers these bytes even if nobody receives yet,
// so the window also bounds its memory. It acknowledges bytes once they have been consumed, so that the sender may send
// as many more.
#pragma once

#include <array>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "copus/comm/messages/tcp_socket.h"

namespace copus {

// A sequence of messages from or to one rank, which arrive in order.
struct TcpStream {
  int64_t peer = 0;  // the other rank
  uint64_t group = 0;
  uint32_t channel = 0;
  auto operator<=>(const TcpStream&) const = default;
};

// Thread-safe. A separate thread moves the bytes.
class TcpConnections {
  struct Message;

 public:
  // The most bytes of a stream that may be sent before the receiver has acknowledged any.
  static constexpr int64_t window_bytes = 4 << 20;

  // `addresses`: of all ranks' doors.
  TcpConnections(int64_t rank, std::vector<TcpAddress> addresses, TcpDoor&& door);
  ~TcpConnections();
  TcpConnections(const TcpConnections&) = delete;
  TcpConnections& operator=(const TcpConnections&) = delete;

  using Handle = std::shared_ptr<Message>;

  // Both functions require `bytes` > 0. A send is done when its data may be overwritten. Buffers must stay alive until
  // their message is done or given up.
  Handle send(const TcpStream& stream, const std::byte* data, int64_t bytes);
  Handle receive(const TcpStream& stream, std::byte* data, int64_t bytes);
  // Sends a copy of the data if it fits into the window. Returns whether it did.
  bool try_send(const TcpStream& stream, const std::byte* data, int64_t bytes);

  // Waits for at most `longest`. Returns whether all messages are done.
  bool wait(std::span<const Handle> messages, std::chrono::milliseconds longest);
  // Describes the first of these messages that is not done: its peer, and the time at which a connection with this peer
  // ended, if one has ended.
  struct Missing {
    int64_t peer;
    std::optional<std::chrono::steady_clock::time_point> lost;
  };
  Missing missing(std::span<const Handle> messages);
  // Stops accessing the buffers of these messages. Closes the connections of unfinished messages, because nothing can
  // be sent on a connection after a truncated message.
  void give_up(std::span<const Handle> messages);

 private:
  struct FrameHeader {
    uint64_t group = 0;
    int64_t message_bytes = 0;  // from the receiver: bytes consumed
    uint32_t channel = 0;
    uint32_t bytes = 0;  // bytes of the message in this frame, which follow
  };
  struct OutStream {
    int64_t may_send = window_bytes;
    int64_t waiting_bytes = 0;
    std::deque<Handle> waiting;  // the first one may be partly sent
  };
  // A connection that this rank opened. It sends messages and receives acknowledgements.
  struct OutLink {
    TcpSocket socket;
    std::vector<std::byte> greeting;
    std::map<std::pair<uint64_t, uint32_t>, OutStream> streams;  // by group and channel
    OutStream* sending = nullptr;                                // the stream whose frame is being sent
    FrameHeader header;
    size_t header_sent = 0;
    int64_t frame_left = 0;
    std::pair<uint64_t, uint32_t> last{};  // the last stream that had its turn
    FrameHeader answer;
    size_t answer_bytes = 0;
    bool over = false;
  };
  struct Early {
    int64_t bytes = 0;
    std::vector<std::byte> content;  // the part received so far
  };
  struct InStream {
    std::deque<Handle> awaited;
    std::deque<Early> early;   // whole messages, except perhaps the last; empty while a receive waits
    int64_t coming_bytes = 0;  // bytes of the message being received
    int64_t coming_left = 0;
    int64_t early_bytes = 0;
    int64_t taken = 0;  // consumed bytes not yet acknowledged
  };
  struct InLink {
    TcpSocket socket;
    FrameHeader header;
    size_t header_bytes = 0;
    InStream* stream = nullptr;  // the stream of the current frame
    int64_t frame_left = 0;
    std::vector<std::byte> answers;
    bool over = false;
  };

  // Called with mutex_ held.
  OutLink& link_to(int64_t peer);
  void enqueue(Handle message);
  static OutStream* next_to_send(OutLink& link);
  static void begin_frame(OutLink& link);
  void write(int64_t peer, OutLink& link);
  void read_answers(int64_t peer, OutLink& link);
  void admit_guests();
  void read(int64_t peer, InLink& link);
  bool begin_body(int64_t peer, InLink& link);
  int64_t read_body(int64_t peer, InLink& link);
  void write_answers(int64_t peer, InLink& link);
  void take(const TcpStream& key, InStream& stream, int64_t bytes);
  void lose(int64_t peer);

  // What the moving thread polls. This thread also closes connections that have ended.
  struct Watched {
    std::vector<pollfd> descriptors;  // those of the connections first
    std::vector<int64_t> in;          // the peers of these connections
    std::vector<int64_t> out;
  };
  Watched watched();
  void run();
  void wake() const;

  const int64_t rank_;
  const std::vector<TcpAddress> addresses_;
  const std::string token_;
  std::optional<TcpDoor> door_;  // used by the thread until all ranks have connected
  TcpSocket bell_;               // an event (eventfd) that wakes the thread

  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<int64_t, OutLink> out_;
  std::map<int64_t, InLink> in_;
  std::map<TcpStream, InStream> incoming_;
  std::map<int64_t, std::chrono::steady_clock::time_point> lost_;
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace copus
