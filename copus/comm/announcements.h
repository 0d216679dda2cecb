// Whether this process still tells the user of failures (rank_failure.h).
#pragma once

namespace copus {

// From now on it does not: what has ended the job is told otherwise, and all else follows from it.
void announce_no_more();
bool may_announce();

}  // namespace copus
