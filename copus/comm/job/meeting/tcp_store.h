// A small store of named texts that all ranks of a job reach over TCP. It is libtorch's TCPStore (c10d), which
// torchrun's agent serves too. Only tcp_store.cpp includes libtorch's headers.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "copus/comm/job/meeting/meeting_place.h"

namespace copus {

// All waits are bounded: if the process that serves the store is stopped or gone, all functions throw RankFailure. Once
// the address' `is_useless` returns true, they return at once without doing anything.
class TcpStore {
 public:
  // Connects to the store at the address. With `serve`, this object first starts to serve the store, for as long as it
  // lives. It then listens only at this address if the host is given as a number; otherwise at all addresses of this
  // machine. Returns null if `is_useless` has returned true. Throws UserError if the store cannot be served, or if no
  // process listens at the address within `wait_seconds`.
  static std::unique_ptr<TcpStore> open(const MeetingAddress& address);
  ~TcpStore();
  TcpStore(const TcpStore&) = delete;
  TcpStore& operator=(const TcpStore&) = delete;

  void set(const std::string& key, const std::string& value);
  // Waits until a process has set the key; empty if none has within `wait_seconds`.
  std::optional<std::string> get(const std::string& key, double wait_seconds);
  // Whether this is the first call with this key among all processes.
  bool is_first(const std::string& key);

 private:
  class Implementation;
  explicit TcpStore(std::unique_ptr<Implementation> implementation);

  std::unique_ptr<Implementation> implementation_;
};

}  // namespace copus
