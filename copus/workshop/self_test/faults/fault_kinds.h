// Lists the faults that are injected into the processes of a training job, and the required result of each.
#pragma once

#include <cstdint>
#include <span>

namespace copus {

enum class Aftermath {
  healed,              // the job continues without the process
  unharmed,            // the job continues with all processes, and no rank counts as failed
  healed_or_unharmed,  // either one, because the process may not need what it lost
  stopped,             // the job ends in order, with a checkpoint
  ended,               // all processes of the job are soon gone
};

struct FaultKind {
  const char* name;
  bool strikes_launcher;  // rather than a rank
  bool is_told;           // whether a job that heals also reports that a rank has failed
  Aftermath aftermath;
  // Strikes a process, and returns when the fault is over. Returns whether the process existed.
  bool (*strike)(int64_t pid);
};

// All kinds, those most frequent in real jobs first.
std::span<const FaultKind> fault_kinds();

}  // namespace copus
