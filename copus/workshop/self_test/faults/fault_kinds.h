// Lists the faults that strike the processes of a training job to test healing, and the required results.
#pragma once

#include <cstdint>
#include <span>

namespace copus {

enum class Aftermath {
  healed,              // the job continues without the process
  unharmed,            // the job continues as it is, and no rank counts as failed
  healed_or_unharmed,  // either, depending on whether the process needed what it lost
  stopped,             // the job ends in order, with a checkpoint
  ended,               // all processes of the job are soon gone
};

struct FaultKind {
  const char* name;
  bool strikes_launcher;  // rather than a rank
  bool is_told;           // whether the job reports that a rank has failed, if it heals
  Aftermath aftermath;
  // Strikes a process. Returns whether it existed. Takes as long as the fault lasts.
  bool (*strike)(int64_t pid);
};

// All kinds, those most frequent in real jobs first.
std::span<const FaultKind> fault_kinds();

}  // namespace copus
