#include "copus/performance/measured/accumulation_time.h"

#include "copus/base/error.h"

namespace copus {

namespace {

constexpr double guessed_share_of_a_micro_batch = 0.25;

double micro_batches(const Configuration& configuration) {
  return static_cast<double>(configuration.num_microbatches());
}

}  // namespace

AccumulationTime AccumulationTime::guess(const Configuration& configuration, double step_seconds) {
  COPUS_CHECK(step_seconds > 0, step_seconds);
  const double per_micro_batch = step_seconds / (micro_batches(configuration) + guessed_share_of_a_micro_batch);
  return {guessed_share_of_a_micro_batch * per_micro_batch, per_micro_batch};
}

std::optional<AccumulationTime> AccumulationTime::of(const Knowledge& known) {
  if (known.cells().empty()) return std::nullopt;
  const auto& [configuration, cell] = *known.cells().begin();
  return AccumulationTime(cell.parts.data_communication, cell.parts.compute / micro_batches(configuration));
}

StepTimeParts AccumulationTime::predict(const Configuration& configuration) const {
  return {.compute = micro_batches(configuration) * per_micro_batch_, .data_communication = once_};
}

}  // namespace copus
