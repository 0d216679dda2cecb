// What a run whose batch and layout move by themselves promises its user (docs/decisions/orchestrator.md): few
// re-layouts, and no batch in which the loss stays above what it would have been.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>

#include "copus/config/job_config.h"
#include "copus/orchestrator/loss_sentinel.h"
#include "copus/orchestrator/observation.h"
#include "copus/orchestrator/speed_watch.h"
#include "copus/orchestrator/state_values.h"

namespace copus {

class AdaptContract {
 public:
  explicit AdaptContract(const JobConfig& config) : adapt_(config.adapt), counts_samples_(spares_tokens(config)) {}

  // Notes a step and the configuration that it ran in. Re-layouts count whoever made them. Other ranks or other speeds
  // are another question of the layout, for which they count anew.
  void observe(const Observation& step, const Configuration& configuration);

  // The number of re-layouts that may still be made; below 0 where others have made more.
  int64_t left() const { return adapt_.most_relayouts - relayouts_; }
  // Tells whether so many more re-layouts may be made.
  bool allows(int64_t relayouts) const { return relayouts <= left(); }
  // Explains why so many more re-layouts would be too many; empty where they would not.
  std::optional<std::string> why_too_many(int64_t relayouts) const;

  // A batch in which the loss is too high.
  struct Breach {
    int64_t batch_before = 0;  // from which the batch has grown
    LossSentinel::Excess excess;
  };
  // Returns the breach of adapt.loss_contract in the present batch, beyond two standard deviations of chance. None in a
  // run that only advises.
  std::optional<Breach> breach() const;
  std::string describe(const Breach& breach) const;
  // Forbids batches as large as this one, in which the loss was too high, until the run is twice as far. Under the
  // published laws the critical batch is 1.4 times as large then (docs/decisions/statistics.md).
  void forbid(int64_t batch, int64_t consumed_samples);
  // Explains why a batch is forbidden after so many samples; empty where it is not.
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
  std::optional<std::pair<int64_t, int64_t>> forbidden_;  // a batch, and the samples until which none is as large
};

}  // namespace copus
