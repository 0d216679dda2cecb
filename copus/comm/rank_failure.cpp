#include "copus/comm/rank_failure.h"

#include <utility>

#include "copus/base/error.h"

namespace copus {

std::string to_string(const FailureReport& report) {
  const std::string where = report.place.empty() ? "" : " at " + report.place;
  const std::string process = report.pid > 0 ? concat(" (pid ", report.pid, ")") : "";
  const std::string who = report.rank < 0 ? "the job" : concat("rank ", report.rank, process);
  return concat(who, " failed", where, ": ", report.cause);
}

RankFailure::RankFailure(FailureReport report) : std::runtime_error(to_string(report)), report_(std::move(report)) {}

}  // namespace copus
