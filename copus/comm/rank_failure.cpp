#include "copus/comm/rank_failure.h"

#include <utility>

#include "copus/base/error.h"

namespace copus {

std::string to_string(const FailureReport& report) {
  const std::string where = report.place.empty() ? "" : " at " + report.place;
  return concat("rank ", report.rank, " failed", where, ": ", report.cause);
}

RankFailure::RankFailure(FailureReport report) : std::runtime_error(to_string(report)), report_(std::move(report)) {}

}  // namespace copus
