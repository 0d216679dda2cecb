// The MPI library's own collectives over all ranks, with which `copus bench comm` compares ours.
#pragma once

#include <cstdint>
#include <memory>

#include "copus/comm/operation.h"

namespace copus {

// Blocking; all are fp32 sums. The destructor ends MPI.
class MpiCollectives {
 public:
  // Starts MPI in a process that mpirun has started. Null if the build has no MPI.
  static std::unique_ptr<MpiCollectives> join();
  virtual ~MpiCollectives() = default;

  virtual int64_t rank() const = 0;
  virtual int64_t size() const = 0;

  // An all-reduce in place, a reduce-scatter or an all-gather, of fp32.
  virtual void run(const Operation& operation) = 0;

  virtual void broadcast(int64_t& value, int64_t root) = 0;
  virtual void barrier() = 0;
};

}  // namespace copus
