// Messages between one rank and all others over TCP. A rank connects to another when it first has something to send to
// it, so that a job has no more connections than its groups need. What goes the other way has a connection of its own.
//
// Messages of several streams share a connection, in frames, and none can hold up another: of each stream, no more
// bytes are under way than the receiver keeps while nobody has asked for them (window_bytes). When these have been
// taken, the receiver says so, and more may come. That bounds the memory too.
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

// A sequence of messages from or to one rank, which arrive in their order.
struct TcpStream {
  int64_t peer = 0;  // the other rank
  uint64_t group = 0;
  uint32_t channel = 0;
  auto operator<=>(const TcpStream&) const = default;
};

// Thread-safe; a thread of its own moves the bytes.
class TcpConnections {
  struct Message;

 public:
  // So many bytes of a stream may be under way to a receiver that is not there yet.
  static constexpr int64_t window_bytes = 4 << 20;

  // `addresses`: of the doors of all ranks.
  TcpConnections(int64_t rank, std::vector<TcpAddress> addresses, TcpDoor&& door);
  ~TcpConnections();
  TcpConnections(const TcpConnections&) = delete;
  TcpConnections& operator=(const TcpConnections&) = delete;

  using Handle = std::shared_ptr<Message>;

  // Both take `bytes` > 0. A send is done when the data may be overwritten. Buffers must stay until the message is done
  // or given up.
  Handle send(const TcpStream& stream, const std::byte* data, int64_t bytes);
  Handle receive(const TcpStream& stream, std::byte* data, int64_t bytes);
  // Sends a copy if it fits into what may be under way, and says whether it did.
  bool try_send(const TcpStream& stream, const std::byte* data, int64_t bytes);

  // Waits for at most so long, and returns whether all of them are done.
  bool wait(std::span<const Handle> messages, std::chrono::milliseconds longest);
  // Of messages that are not all done: the peer of the first that is not, and since when a connection with it has been
  // over, if one has.
  struct Missing {
    int64_t peer;
    std::optional<std::chrono::steady_clock::time_point> lost;
  };
  Missing missing(std::span<const Handle> messages);
  // Touches the buffers of these messages no more, and closes the connections of those that are not done: nothing can
  // be sent behind a message that was cut short.
  void give_up(std::span<const Handle> messages);

 private:
  struct FrameHeader {
    uint64_t group = 0;
    int64_t message_bytes = 0;  // from the receiver: what it has taken
    uint32_t channel = 0;
    uint32_t bytes = 0;  // of the message, which follow
  };
  struct OutStream {
    int64_t may_send = window_bytes;
    int64_t waiting_bytes = 0;
    std::deque<Handle> waiting;  // the first may be sent in part
  };
  // A connection that this rank has opened. Messages go out, and what has been taken comes back.
  struct OutLink {
    TcpSocket socket;
    std::vector<std::byte> greeting;
    std::map<std::pair<uint64_t, uint32_t>, OutStream> streams;  // by group and channel
    OutStream* sending = nullptr;                                // whose frame is under way
    FrameHeader header;
    size_t header_sent = 0;
    int64_t frame_left = 0;
    std::pair<uint64_t, uint32_t> last{};  // the streams take turns
    FrameHeader answer;
    size_t answer_bytes = 0;
    bool over = false;
  };
  struct Early {
    int64_t bytes = 0;
    std::vector<std::byte> content;  // as far as it has come
  };
  struct InStream {
    std::deque<Handle> awaited;
    std::deque<Early> early;   // whole messages, but perhaps for the last; none while a receive is awaited
    int64_t coming_bytes = 0;  // of the message that is under way
    int64_t coming_left = 0;
    int64_t early_bytes = 0;
    int64_t taken = 0;  // of which the sender does not know
  };
  struct InLink {
    TcpSocket socket;
    FrameHeader header;
    size_t header_bytes = 0;
    InStream* stream = nullptr;  // of the frame under way
    int64_t frame_left = 0;
    std::vector<std::byte> answers;
    bool over = false;
  };

  // With mutex_ held.
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

  // What the thread polls. It is also the one that closes connections which are over.
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
  std::optional<TcpDoor> door_;  // of the thread; until all have come
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
