#include "copus/comm/messages/tcp_transport.h"

#include <chrono>
#include <utility>

namespace copus {

namespace {

using Clock = std::chrono::steady_clock;

// A waiting rank checks this often whether the job has failed.
constexpr auto progress_interval = std::chrono::milliseconds(25);
// After a rank's connection has closed, health has this long to report what happened to the rank. If it reports
// nothing, the rank is well and the network is at fault.
constexpr auto time_for_health = std::chrono::seconds(1);

}  // namespace

class TcpTransport::TcpMessages final : public Messages {
 public:
  TcpMessages(TcpTransport& transport, Channel channel) : transport_(transport), channel_(channel) {}
  TcpMessages(const TcpMessages&) = delete;
  TcpMessages& operator=(const TcpMessages&) = delete;
  ~TcpMessages() override { transport_.connections_.give_up(under_way_); }

  void send(const void* data, int64_t bytes, int64_t to) override {
    if (bytes == 0) return;
    under_way_.push_back(
        transport_.connections_.send(transport_.stream(to, channel_), static_cast<const std::byte*>(data), bytes));
  }

  void receive(void* data, int64_t bytes, int64_t from) override {
    if (bytes == 0) return;
    under_way_.push_back(
        transport_.connections_.receive(transport_.stream(from, channel_), static_cast<std::byte*>(data), bytes));
  }

  void finish() override {
    transport_.health().check();
    const WaitingForOthers waiting(transport_.health());
    const auto started = Clock::now();
    while (!transport_.connections_.wait(under_way_, progress_interval)) {
      transport_.health().check();
      const auto [peer, lost] = transport_.connections_.missing(under_way_);
      const auto now = Clock::now();
      if (lost && now - *lost > time_for_health) transport_.blame(peer, "the connection to it broke");
      if (std::chrono::duration<double>(now - started).count() > transport_.wait_seconds()) {
        transport_.blame(peer, transport_.kept_waiting());
      }
    }
    under_way_.clear();
  }

 private:
  TcpTransport& transport_;
  const Channel channel_;
  std::vector<TcpConnections::Handle> under_way_;
};

TcpTransport::TcpTransport(std::vector<int64_t> ranks, int64_t rank, uint64_t group, TcpConnections& connections,
                           TcpHealth& health, double wait_seconds)
    : MessageTransport(std::move(ranks), rank, health, wait_seconds), group_(group), connections_(connections) {}

std::unique_ptr<MessageTransport::Messages> TcpTransport::start(Channel channel) {
  return std::make_unique<TcpMessages>(*this, channel);
}

TcpStream TcpTransport::stream(int64_t member, Channel channel) const {
  return {world_rank(member), group_, static_cast<uint32_t>(channel)};
}

bool TcpTransport::try_send(const void* data, int64_t bytes, int64_t to) {
  health().check();
  return bytes == 0 || connections_.try_send(stream(to, Channel::message), static_cast<const std::byte*>(data), bytes);
}

}  // namespace copus
