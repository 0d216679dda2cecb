// Represents another machine of a job, for the deciding launcher.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "copus/comm/job/healing/machine_link.h"
#include "copus/comm/job/healing/machine_messages.h"

namespace copus {

class RemoteMachine {
 public:
  RemoteMachine(int64_t number, TcpSocket socket)
      : number_(number), link_(std::make_unique<MachineLink>(std::move(socket))) {}

  int64_t number() const { return number_; }
  // The connection's descriptor; -1 once nothing more is read from it.
  int descriptor() const;

  // Returns its news since the last call. Its arrival is recorded here.
  std::vector<News> hear(double seconds);
  void tell(const Order& order);
  // The last message to it. After that, its end is not a loss.
  void conclude(int64_t code);
  bool is_concluded() const { return concluded_; }
  // Waits until the other end has read that message, but not longer than a moment.
  void part();
  // Marks it as lost. If it is alive after all, it notices that it is no longer part of the job.
  void hang_up() { link_.reset(); }

  const std::optional<Arrived>& arrived() const { return arrived_; }
  // Why it is gone with all its processes. Its launcher killed them first, or they died with it.
  std::optional<std::string> loss() const;
  std::string name() const;  // "machine 1 (host NAME)"

 private:
  const int64_t number_;
  std::unique_ptr<MachineLink> link_;  // null once it is lost
  std::optional<Arrived> arrived_;
  bool concluded_ = false;
  bool garbled_ = false;     // from then on nothing is sent to it, and its messages are ignored
  double over_seconds_ = 0;  // since the connection ended, or since this launcher is silent to a garbled one
};

}  // namespace copus
