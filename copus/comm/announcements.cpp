#include "copus/comm/announcements.h"

#include <atomic>

namespace copus {

namespace {

// One flag per process, because all ranks of a process share its stderr.
std::atomic<bool> all_is_told = false;

}  // namespace

void announce_no_more() { all_is_told = true; }

bool may_announce() { return !all_is_told; }

}  // namespace copus
