// Controls whether this process still reports failures to the user (rank_failure.h).
#pragma once

namespace copus {

// Stops all further reports by this process. The cause that ended the job is reported elsewhere, and later failures
// only follow from it.
void announce_no_more();
bool may_announce();

}  // namespace copus
