// Frames from a rank that is let in. In front stand how this rank behaves (whether it asks for the message before it
// comes, where it stops reading for a moment), the stream that it asks for, and the length that it expects.
#include <unistd.h>

#include <chrono>
#include <memory>
#include <thread>
#include <vector>

#include "copus/comm/messages/tcp_connections.h"
#include "fuzz_target.h"
#include "loopback.h"

using namespace copus;

namespace {

constexpr int64_t ranks = 256;

// Rank 0 of a job whose other ranks come once each.
class Rank {
 public:
  Rank() : Rank(TcpDoor("127.0.0.1", std::string(token_letters, 'a'), ranks)) {}

  bool has_met_all() const { return next_ == ranks; }

  void meet(Pieces pieces) {
    const bool asks_early = pieces.byte() % 2 == 0;
    TcpStream stream;
    stream.peer = next_++;
    stream.group = pieces.byte();
    stream.channel = pieces.byte();
    std::vector<std::byte> buffer(1 + pieces.number());
    const std::string_view first = pieces.take(pieces.number());

    std::vector<TcpConnections::Handle> handles;
    const auto ask = [&] { handles.push_back(connections_.receive(stream, buffer.data(), std::ssize(buffer))); };
    try {
      if (asks_early) ask();
      {
        const LoopbackConnection other(port_);
        const std::vector<std::byte> greeting = hello(std::string(token_letters, 'a'), stream.peer);
        other.send({reinterpret_cast<const char*>(greeting.data()), greeting.size()});
        other.send(first);
        if (!asks_early) std::this_thread::sleep_for(std::chrono::microseconds(200));
        if (!asks_early) ask();
        other.send(pieces.rest());
      }
      const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(5);
      // A wait does not end when a connection does, so this looks again and again.
      while (!connections_.wait(handles, std::chrono::milliseconds(0)) && !connections_.missing(handles).lost) {
        expect(std::chrono::steady_clock::now() < end, "a rank that has hung up is waited for");
        std::this_thread::sleep_for(std::chrono::microseconds(20));
      }
    } catch (const InternalError& error) {
      // Two ranks that disagree about a message's length are a mistake of ours, and nothing else is.
      expect(std::string_view(error.what()).find(" bytes, rank 0 expects ") != std::string_view::npos, error.what());
    }
    connections_.give_up(handles);
  }

 private:
  explicit Rank(TcpDoor&& door)
      : port_(door.address().port),
        connections_(0, std::vector<TcpAddress>(ranks, TcpAddress{"127.0.0.1", 1}), std::move(door)) {}

  int64_t port_;
  int64_t next_ = 1;
  TcpConnections connections_;
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static std::unique_ptr<Rank> rank;
  if (!rank || rank->has_met_all()) rank = std::make_unique<Rank>();
  rank->meet(Pieces(text_of(data, size)));
  return 0;
}
