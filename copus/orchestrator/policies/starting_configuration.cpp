#include "copus/orchestrator/policies/starting_configuration.h"

#include <algorithm>
#include <limits>
#include <vector>

#include "copus/orchestrator/predictions/candidates.h"

namespace copus {

namespace {

// The fastest candidate with a batch and, if given, a strategy. Null if there is none.
const Candidate* fastest(const std::vector<Candidate>& candidates, int64_t batch, const ParallelStrategy* strategy) {
  const Candidate* best = nullptr;
  for (const Candidate& candidate : candidates) {
    const Configuration& configuration = candidate.configuration;
    if (configuration.global_batch != batch || (strategy != nullptr && configuration.strategy != *strategy)) continue;
    if (best == nullptr || candidate.step_seconds < best->step_seconds) best = &candidate;
  }
  return best;
}

int64_t largest_batch(const std::vector<Candidate>& candidates) {
  int64_t largest = 0;
  for (const Candidate& candidate : candidates) largest = std::max(largest, candidate.configuration.global_batch);
  return largest;
}

}  // namespace

Configuration starting_configuration(const RunConfig& config) {
  const Configuration described = configuration_of(config);
  const PolicyKind policy = config.adapt.policy;
  const bool is_optimistic = policy == PolicyKind::cbs_optimistic;
  const bool has_its_layout =
      policy == PolicyKind::static_best || policy == PolicyKind::cbs_pessimistic || is_optimistic;
  if (!has_its_layout || config.adapt.advise) return described;

  // If the table lacks the described configuration, it is treated as infinitely slow: it may not be possible on the
  // cluster.
  constexpr double infinity = std::numeric_limits<double>::infinity();
  const std::vector<Candidate> candidates = candidates_of(
      predicted_table(config, Knowledge()), {.configuration = described, .step_seconds = infinity}, config);
  const Candidate* const at_largest = is_optimistic ? fastest(candidates, largest_batch(candidates), nullptr) : nullptr;
  const Candidate* const best = fastest(candidates, described.global_batch,
                                        at_largest != nullptr ? &at_largest->configuration.strategy : nullptr);
  return best != nullptr ? best->configuration : described;
}

}  // namespace copus
