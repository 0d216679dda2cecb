// What is done to the processes of a training job to see whether it heals, and what has to come of it.
#pragma once

#include <cstdint>
#include <span>

namespace copus {

enum class Aftermath {
  healed,              // the job goes on without the process
  unharmed,            // the job goes on as it is, and nothing counts as failed
  healed_or_unharmed,  // one of these, by whether the process needed what was taken from it
  stopped,             // the job ends in good order, with a checkpoint
  ended,               // all processes of the job are gone soon
};

struct FaultKind {
  const char* name;
  bool strikes_launcher;  // rather than a rank
  bool is_told;           // whether the job says that a rank has failed, where it is healed
  Aftermath aftermath;
  // Returns whether the process was there to be struck. Takes as long as the fault lasts.
  bool (*strike)(int64_t pid);
};

// All kinds, the most frequent ones of real jobs first.
std::span<const FaultKind> fault_kinds();

}  // namespace copus
