// Another machine of a job, as the launcher that decides sees it.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "copus/comm/job/machine_link.h"
#include "copus/comm/job/machine_messages.h"

namespace copus {

class RemoteMachine {
 public:
  RemoteMachine(int64_t number, TcpSocket socket)
      : number_(number), link_(std::make_unique<MachineLink>(std::move(socket))) {}

  int64_t number() const { return number_; }
  // Of the connection; -1 once nothing that comes is read any more.
  int descriptor() const;

  // What it has told since the last call. Its arrival is noted here.
  std::vector<News> hear(double seconds);
  void tell(const Order& order);
  // The last that it is told. After that it is no loss.
  void conclude(int64_t code);
  bool is_concluded() const { return concluded_; }
  // Waits until it has taken that, or no longer than a moment.
  void part();
  // It is lost: should it be there after all, it sees that nobody counts on it any more.
  void hang_up() { link_.reset(); }

  const std::optional<Arrived>& arrived() const { return arrived_; }
  // Why it is gone with all of its processes: its launcher has killed them before, or they have died with it.
  std::optional<std::string> loss() const;
  std::string name() const;  // "machine 1 (host NAME)"

 private:
  const int64_t number_;
  std::unique_ptr<MachineLink> link_;  // null once it is lost
  std::optional<Arrived> arrived_;
  bool concluded_ = false;
  bool garbled_ = false;     // from then on it is told nothing, and nothing that it tells counts
  double over_seconds_ = 0;  // for which the connection has been over, or this launcher silent to a garbled one
};

}  // namespace copus
