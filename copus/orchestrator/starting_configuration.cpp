#include "copus/orchestrator/starting_configuration.h"

#include <algorithm>
#include <functional>

#include "copus/orchestrator/candidates.h"

namespace copus {

namespace {

using CellFilter = std::function<bool(const Configuration&)>;

// The fastest cell of a batch among those that `allowed` lets through; null where there is none.
const TableCell* fastest(const PerformanceTable& table, int64_t batch, const CellFilter& allowed) {
  const TableCell* best = nullptr;
  for (const TableCell& cell : table.cells) {
    if (cell.configuration.global_batch != batch || !allowed(cell.configuration)) continue;
    if (best == nullptr || cell.step.seconds < best->step.seconds) best = &cell;
  }
  return best;
}

int64_t largest_batch(const PerformanceTable& table) {
  int64_t largest = 0;
  for (const TableCell& cell : table.cells) largest = std::max(largest, cell.configuration.global_batch);
  return largest;
}

}  // namespace

Configuration starting_configuration(const RunConfig& config) {
  const Configuration described = configuration_of(config);
  const PolicyKind policy = config.adapt.policy;
  const bool is_optimistic = policy == PolicyKind::cbs_optimistic;
  if (policy != PolicyKind::static_best && policy != PolicyKind::cbs_pessimistic && !is_optimistic) return described;
  const PerformanceTable table = predicted_table(config, Knowledge());
  CellFilter allowed = [](const Configuration&) { return true; };
  if (is_optimistic) {
    if (const TableCell* const at_largest = fastest(table, largest_batch(table), allowed)) {
      allowed = [strategy = at_largest->configuration.strategy](const Configuration& configuration) {
        return configuration.strategy == strategy;
      };
    }
  }
  const TableCell* const best = fastest(table, described.global_batch, allowed);
  return best != nullptr ? best->configuration : described;
}

}  // namespace copus
