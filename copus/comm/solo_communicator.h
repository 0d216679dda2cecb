// The communicator of a group of one. Every operation completes immediately, on the caller's thread.
#pragma once

#include <cstring>

#include "copus/comm/communicator.h"

namespace copus {

class SoloCommunicator final : public Communicator {
 public:
  // `rank`: world rank of the only member.
  explicit SoloCommunicator(int64_t rank) : Communicator({rank}, 0) {}

 private:
  Work do_start(const Operation& operation) override {
    do_run(operation);
    return {};
  }

  // The result of every collective is the member's own input.
  void do_run(const Operation& operation) override {
    if (operation.bytes() == 0 || operation.input == operation.output) return;
    std::memcpy(operation.output, operation.input, operation.bytes());
  }
};

}  // namespace copus
