// The progress of an advised job after a step: its adviser's counters, and their text for a checkpoint.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "copus/config/job_config.h"
#include "copus/record/step_record.h"
#include "copus/report/logs/decision_log.h"
#include "copus/statistics/noise_scale.h"

namespace copus {

// Depends only on the records of the steps, so it is the same whether they have just happened or are read from a log.
struct AdviserState {
  int64_t step = 0;
  int64_t consumed_samples = 0;
  int64_t skipped_samples = 0;
  int64_t observed_samples = 0;  // value of consumed_samples, without skipped ones, when the noise was last observed
  double elapsed_seconds = 0;
  Configuration configuration;
  NoiseAverage noise;

  // Adds a step with its measurements, and sets the derived fields of its record: the counters, the noise scale and, if
  // the job's length is known, the remaining time and the completed fraction.
  void complete(const JobConfig& config, StepRecord& record);
  // Adds a step from a log. If the averages had been restarted before this step, restarts them.
  void repeat(const JobConfig& config, const StepRecord& record);

  bool operator==(const AdviserState&) const = default;
};

// The contents of a checkpoint. `begin` lets a new controller continue with the known step times; it is empty if the
// job has had no controller. All other state of the earlier controller is only in the logs.
struct KeptState {
  AdviserState state;
  std::optional<ControllerBegin> begin;
};

// Converts to one line of JSON, and back. Throws UserError that names the fault.
std::string to_text(const KeptState& kept);
KeptState kept_state_from_text(const std::string& text);

}  // namespace copus
