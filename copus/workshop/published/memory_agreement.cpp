#include "copus/workshop/published/memory_agreement.h"

#include <cmath>

#include "copus/base/text/lower_case.h"
#include "copus/workshop/published/agreement.h"
#include "copus/workshop/published/memory.h"

namespace copus {
namespace {

std::optional<double> share(int64_t part, int64_t whole) {
  if (whole == 0) return std::nullopt;
  return static_cast<double>(part) / static_cast<double>(whole);
}

// Empty if the run is left out.
struct Judgement {
  MemoryPrediction prediction;
  double memory_bytes;
  bool feasible;
};
std::optional<Judgement> judge(const PublishedRun& run) {
  const PublishedMemoryCase described = describe_published_memory(run);
  if (!described.left_out.empty()) return std::nullopt;
  const MemoryPrediction prediction =
      MemoryModel(described.model, described.sequence_length, described.system).predict(described.configuration);
  return Judgement{prediction, described.memory_bytes, !out_of_memory_reason(prediction, described.memory_bytes)};
}

}  // namespace

std::optional<double> MemoryAgreement::feasible_recall() const { return share(ran_called_feasible, ran); }
std::optional<double> MemoryAgreement::infeasible_recall() const {
  return share(out_of_memory_called_infeasible, out_of_memory);
}

FailureKind failure_kind(const std::string& status) {
  const std::string lower = lower_case(status);
  const auto says = [&](const char* words) { return lower.find(words) != std::string::npos; };
  if (!says("oom") && !says("out of memory") && !says("out_of_memory")) return FailureKind::other;
  return says("crash") || says("_or_") || says(" or ") ? FailureKind::unclear : FailureKind::out_of_memory;
}

MemoryAgreement judge_memory(const std::vector<PublishedRun>& runs, const std::vector<PublishedRun>& failures) {
  MemoryAgreement agreement;
  std::vector<double> errors;
  const auto misjudged = [&](const PublishedRun& run, const Judgement& judgement) {
    agreement.misjudged.push_back({run.row_id, run.group, run.status, judgement.prediction, judgement.memory_bytes});
  };
  for (const PublishedRun& run : runs) {
    const std::optional<Judgement> judgement = judge(run);
    if (!judgement) {
      ++agreement.left_out;
      continue;
    }
    ++agreement.ran;
    if (judgement->feasible) {
      ++agreement.ran_called_feasible;
    } else {
      misjudged(run, *judgement);
    }
    if (run.memory_gigabytes && *run.memory_gigabytes > 0) {
      // Programs report gibibytes, whatever they call the unit.
      const double published = *run.memory_gigabytes * static_cast<double>(int64_t{1} << 30);
      errors.push_back(std::abs(judgement->prediction.parts.total() / published - 1));
    }
  }
  for (const PublishedRun& run : failures) {
    const FailureKind kind = failure_kind(run.status);
    const std::optional<Judgement> judgement = judge(run);
    if (kind == FailureKind::other) {
      ++agreement.failed_otherwise;
    } else if (!judgement) {
      ++agreement.left_out;
    } else if (kind == FailureKind::unclear) {
      ++agreement.unclear;
      if (!judgement->feasible) ++agreement.unclear_called_infeasible;
    } else {
      ++agreement.out_of_memory;
      if (!judgement->feasible) {
        ++agreement.out_of_memory_called_infeasible;
      } else {
        misjudged(run, *judgement);
      }
    }
  }
  agreement.with_memory = static_cast<int64_t>(errors.size());
  if (!errors.empty()) agreement.median_absolute_error = median_of(errors);
  return agreement;
}

}  // namespace copus
