#include "copus/comm/rank_failure.h"

#include <unistd.h>

#include <utility>

#include "copus/base/error.h"
#include "copus/base/text/printable.h"
#include "copus/comm/announcements.h"

namespace copus {

FailureReport did_not_come(int64_t rank, double wait_seconds) {
  return {rank, "the start of the job", concat("did not come within ", wait_seconds, " s")};
}

std::string to_string(const FailureReport& report) {
  const std::string where = report.place.empty() ? "" : " at " + report.place;
  const std::string process = report.pid > 0 ? concat(" (pid ", report.pid, ")") : "";
  const std::string who = report.rank < 0 ? "the job" : concat("rank ", report.rank, process);
  return concat(who, " failed", where, ": ", report.cause);
}

RankFailure::RankFailure(FailureReport report) : std::runtime_error(to_string(report)), report_(std::move(report)) {}

void announce(const FailureReport& report) {
  if (!may_announce()) return;
  const std::string line = concat("copus: error: ", printable(to_string(report)), "; the job is ended\n");
  // A single write() call keeps lines of different processes apart. Its error is ignored: there is nowhere to report
  // it.
  [[maybe_unused]] const ssize_t written = ::write(STDERR_FILENO, line.data(), line.size());
}

}  // namespace copus
