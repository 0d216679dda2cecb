#include "copus/comm/job/meeting/meeting_place.h"

#include "copus/base/error.h"

namespace copus {

void check_meeting_address(const std::string& host, int64_t port, int64_t ranks_here, int64_t ranks) {
  if (!host.empty() && port != 0) return;
  throw UserError(concat("this job has ranks on several machines (", ranks_here, " of ", ranks,
                         " are on this one), and its launcher does not say where they meet; set MASTER_ADDR to the "
                         "address of rank 0's machine and MASTER_PORT to a port that is free there, for all ranks"));
}

}  // namespace copus
