// A small store of named texts that all ranks of a job reach over TCP. It is that of libtorch (c10d), which torchrun's
// agent serves too; libtorch's headers stay in tcp_store.cpp.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "copus/comm/job/meeting_place.h"

namespace copus {

// Nothing here waits for ever, also where the process that serves the store is stopped: then, and where it is gone, all
// throw RankFailure. Once the address' `is_useless` says so, they return at once, with nothing done.
class TcpStore {
 public:
  // Connects to the store at the address, and with `serve` serves it there while this lives: at this one address where
  // it is given by number, else at all addresses of this machine. Null where `is_useless` has said so. Throws UserError
  // where it cannot be served, or nobody listens there within `wait_seconds`.
  static std::unique_ptr<TcpStore> open(const MeetingAddress& address);
  ~TcpStore();
  TcpStore(const TcpStore&) = delete;
  TcpStore& operator=(const TcpStore&) = delete;

  void set(const std::string& key, const std::string& value);
  // Waits until somebody has set the key; empty when nobody has within `wait_seconds`.
  std::optional<std::string> get(const std::string& key, double wait_seconds);
  // Whether this call is the first one with this key of all processes.
  bool is_first(const std::string& key);

 private:
  class Implementation;
  explicit TcpStore(std::unique_ptr<Implementation> implementation);

  std::unique_ptr<Implementation> implementation_;
};

}  // namespace copus
