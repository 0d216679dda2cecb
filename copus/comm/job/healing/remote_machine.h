// Represents one of the job's other machines in the deciding launcher.
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

  // Returns the machine's news since the last call. The news that its launcher has arrived is only recorded here.
  std::vector<News> hear(double seconds);
  void tell(const Order& order);
  // Sends the last message to the machine. If its connection ends afterwards, the machine does not count as lost.
  void conclude(int64_t code);
  bool is_concluded() const { return concluded_; }
  // Waits, but only for a moment, until the other end has read the last message.
  void part();
  // Marks the machine as lost. If its launcher is still running, it notices that its connection has ended.
  void hang_up() { link_.reset(); }

  const std::optional<Arrived>& arrived() const { return arrived_; }
  // Why the machine is lost; empty if it is not lost. All processes of a lost machine are gone: its launcher killed
  // them, or they died with the launcher.
  std::optional<std::string> loss() const;
  std::string name() const;  // "machine 1 (host NAME)"

 private:
  const int64_t number_;
  std::unique_ptr<MachineLink> link_;  // null once it is lost
  std::optional<Arrived> arrived_;
  bool concluded_ = false;
  bool garbled_ = false;     // it sent invalid bytes: nothing more is sent to it, and its messages are ignored
  double over_seconds_ = 0;  // time since the connection ended or, if garbled, since the last message to it
};

}  // namespace copus
