#include "copus/comm/job/tcp_store.h"

#include <algorithm>
#include <chrono>
#include <exception>
#include <thread>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include "copus/base/error.h"

namespace copus {

namespace {

std::chrono::milliseconds milliseconds(double seconds) {
  // 0 would mean to wait for ever.
  return std::chrono::milliseconds(std::max<int64_t>(static_cast<int64_t>(seconds * 1000), 1));
}

c10d::TCPStoreOptions options_for(int64_t port, bool serve, double wait_seconds) {
  c10d::TCPStoreOptions options;
  options.port = static_cast<uint16_t>(port);
  options.isServer = serve;
  options.waitWorkers = false;
  options.timeout = milliseconds(wait_seconds);
  return options;
}

// The first line of what c10d throws; a stack follows.
std::string first_line(const std::exception& error) {
  const std::string text = error.what();
  return text.substr(0, text.find('\n'));
}

}  // namespace

class TcpStore::Implementation {
 public:
  Implementation(const std::string& host, const c10d::TCPStoreOptions& options) : store(host, options) {}
  c10d::TCPStore store;
};

TcpStore::TcpStore(const std::string& host, int64_t port, bool serve, double wait_seconds) try
    : implementation_(std::make_unique<Implementation>(host, options_for(port, serve, wait_seconds))) {
} catch (const std::exception& error) {
  throw UserError(concat("cannot ", serve ? "serve" : "reach", " the ranks' meeting place at ", host, ":", port, " (",
                         first_line(error),
                         "); choose a free port with MASTER_PORT, and rank 0's host with MASTER_ADDR"));
}

TcpStore::~TcpStore() = default;

void TcpStore::set(const std::string& key, const std::string& value) {
  static_cast<c10d::Store&>(implementation_->store).set(key, value);
}

// Asks again and again, since c10d's own wait ends in an exception whose stack takes longer to look up than the
// deadlines of the ranks are apart: another rank would find this one missing meanwhile.
std::optional<std::string> TcpStore::get(const std::string& key, double wait_seconds) {
  constexpr std::chrono::milliseconds interval(5);
  const auto end = std::chrono::steady_clock::now() + milliseconds(wait_seconds);
  try {
    while (!implementation_->store.check({key})) {
      if (std::chrono::steady_clock::now() >= end) return std::nullopt;
      std::this_thread::sleep_for(interval);
    }
    return implementation_->store.get_to_str(key);
  } catch (const std::exception&) {
    return std::nullopt;  // the rank that served the store is gone
  }
}

}  // namespace copus
