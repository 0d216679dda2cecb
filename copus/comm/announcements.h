// Controls whether this process still reports failures to the user (rank_failure.h).
#pragma once

namespace copus {

// Stops all further reports by this process. Another process reports why the job ended, and later failures only follow
// from that.
void announce_no_more();
bool may_announce();

}  // namespace copus
