// Where an advised job stands after a step: what its adviser counts, and the text of it that a checkpoint keeps.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "copus/config/job_config.h"
#include "copus/record/step_record.h"
#include "copus/report/decision_log.h"
#include "copus/statistics/noise_scale.h"

namespace copus {

// Follows from the records of the steps alone, whether they have just happened or are read from a log.
struct AdviserState {
  int64_t step = 0;
  int64_t consumed_samples = 0;
  int64_t skipped_samples = 0;
  int64_t observed_samples = 0;  // consumed when the noise was last observed, without skipped ones
  double elapsed_seconds = 0;
  Configuration configuration;
  NoiseAverage noise;

  // Adds a step with what was measured of it, and fills in what follows: the counters, the noise scale and, where the
  // job's length is known, how much of it is left.
  void complete(const JobConfig& config, StepRecord& record);
  // Adds a step that is read from a log. Averages that were begun anew before it are so here.
  void repeat(const JobConfig& config, const StepRecord& record);

  bool operator==(const AdviserState&) const = default;
};

// What a checkpoint keeps. `begin` makes a controller that goes on from there, where the job has had one; it knows the
// step times, not what the one before it remembered: that is in the logs.
struct KeptState {
  AdviserState state;
  std::optional<ControllerBegin> begin;
};

// Converts to one line of JSON, and back. Throws UserError that names what is wrong.
std::string to_text(const KeptState& kept);
KeptState kept_state_from_text(const std::string& text);

}  // namespace copus
