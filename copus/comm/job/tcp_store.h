// A small store of named texts that all ranks of a job reach over TCP. It is that of libtorch (c10d), which torchrun's
// agent serves too; libtorch's headers stay in tcp_store.cpp.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

namespace copus {

class TcpStore {
 public:
  // Connects to the store at host:port, and with `serve` serves it there while this lives. Throws UserError when that
  // does not succeed within `wait_seconds`.
  TcpStore(const std::string& host, int64_t port, bool serve, double wait_seconds);
  ~TcpStore();
  TcpStore(const TcpStore&) = delete;
  TcpStore& operator=(const TcpStore&) = delete;

  void set(const std::string& key, const std::string& value);
  // Waits until somebody has set the key; empty when nobody has within `wait_seconds`.
  std::optional<std::string> get(const std::string& key, double wait_seconds);

 private:
  class Implementation;
  std::unique_ptr<Implementation> implementation_;
};

}  // namespace copus
