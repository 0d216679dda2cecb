// The contract of an adapting run (docs/decisions/orchestrator.md). The run makes few re-layouts. If the loss in a
// batch is higher than forecast from the previous batch, the run leaves that batch.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>

#include "copus/config/job_config.h"
#include "copus/orchestrator/observation.h"
#include "copus/orchestrator/policies/loss_sentinel.h"
#include "copus/orchestrator/policies/speed_watch.h"
#include "copus/orchestrator/state_values.h"

namespace copus {

class AdaptContract {
 public:
  explicit AdaptContract(const JobConfig& config) : adapt_(config.adapt), counts_samples_(spares_tokens(config)) {}

  // Records a step and the configuration in which it ran. Every re-layout is counted, even if a user commanded it. If
  // the number of ranks or the speed of steps changes, the count of re-layouts restarts at 0, because another layout
  // may now be best.
  void observe(const Observation& step, const Configuration& configuration);

  // The number of re-layouts that are still allowed; negative if users have made more.
  int64_t left() const { return adapt_.most_relayouts - relayouts_; }
  // Whether this many more re-layouts are allowed.
  bool allows(int64_t relayouts) const { return relayouts <= left(); }
  // Explains why this many more re-layouts are not allowed; empty if they are.
  std::optional<std::string> why_too_many(int64_t relayouts) const;

  // A batch in which the loss is too high.
  struct Breach {
    int64_t batch_before = 0;  // the batch before it grew
    LossSentinel::Excess excess;
  };
  // Returns the breach if the loss in the current batch is above its forecast by more than adapt.loss_contract plus two
  // standard deviations. Empty otherwise, and always empty for a run that only advises.
  std::optional<Breach> breach() const;
  std::string describe(const Breach& breach) const;
  // Forbids this batch and larger batches, because the loss was too high in this batch. They are allowed again when the
  // run has consumed twice as many samples. Under the published laws the critical batch is then 1.4 times as large
  // (docs/decisions/statistics.md).
  void forbid(int64_t batch, int64_t consumed_samples);
  // Explains why a batch is forbidden after this many samples; empty if it is allowed.
  std::optional<std::string> why_forbidden(int64_t batch, int64_t consumed_samples) const;

  void visit_state(StateValues& values);

 private:
  AdaptConfig adapt_;
  bool counts_samples_;  // the loss is compared at equal samples; else at equal seconds of training
  std::optional<Configuration> last_;
  int64_t relayouts_ = 0;  // since the beginning, or since ranks or speeds changed
  SpeedWatch speed_;
  LossSentinel sentinel_;
  double seconds_ = 0;  // of all steps, without pauses
  int64_t batch_before_ = 0;
  std::optional<std::pair<int64_t, int64_t>> forbidden_;  // the smallest one, and the samples at which that ends
};

}  // namespace copus
