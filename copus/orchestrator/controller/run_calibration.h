// Decides on calibrations inside a run: up to three times, a run measures its critical batch by short branches that it
// trains from its current state. The rules here say when a calibration is due, which branches are trained and what they
// cost. Batches and lengths are in samples.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "copus/config/job_config.h"
#include "copus/orchestrator/observation.h"
#include "copus/statistics/branch_calibration.h"

namespace copus {

// Number of held-out sequences that judge a branch; all if there are fewer.
inline constexpr int64_t branch_held_out_samples = 512;

// What a run trains in a calibration.
struct CalibrationRequest {
  int64_t batch = 0;  // the run's
  int64_t repetitions = 0;
  double most_seconds = 0;  // the unspent part of adapt.explore_budget; no further branch begins after this time
  bool operator==(const CalibrationRequest&) const = default;
};

// The batch of the branches that are compared with the run's own: 8 times as large.
int64_t branch_batch_of(int64_t batch);

// Returns the branches, without losses. Each repetition has a ladder in the run's batch, and a branch in the larger
// batch at sqrt(8) times the run's learning rate.
std::vector<BranchOutcome> branches_of(const CalibrationRequest& request);

// Number of samples on which the run could train in the time of all branches, evaluations included.
double cost_of(const CalibrationRequest& request);

// Number of samples between the run's position in the data and a repetition's first sample.
int64_t skipped_samples_of(const CalibrationRequest& request, int64_t repetition);

// Describes the outcome: "critical batch 210 samples (150 to 290) by 6 branches in batches of 32 and 256".
std::string describe(const RunCalibration& calibration);

// The calibrations of a run so far.
class RunCalibrations {
 public:
  // A run with this configuration calibrates itself only under adapt.policy "copus". Three settings prevent it:
  // adapt.hold_in for the main phase, measured critical batches in noise_scale.calibration, and
  // noise_scale.critical_updates.
  explicit RunCalibrations(const JobConfig& config);

  // Whether the run may calibrate itself. If not, nothing is ever due.
  bool are_allowed() const { return are_allowed_; }

  // Returns the calibration that is due, if its forecast cost fits into adapt.explore_budget. The first calibration is
  // due at 1 % of the run. Each later calibration is due when the completed fraction is four times as large as at the
  // previous one. None is due in the second half, in warm-up or decay, or before the noise scale is known and positive.
  // `step_seconds` are the expected seconds of a step in `batch`, the run's current batch.
  std::optional<CalibrationRequest> due(const Observation& latest, int64_t batch, double step_seconds) const;
  void add(const RunCalibration& calibration);
  // The critical batches that the calibrations have shown.
  const std::vector<MeasuredCriticalBatch>& critical_batches() const { return critical_batches_; }

  void visit_state(auto& values) { values(count_, seconds_, latest_share_, critical_batches_); }

 private:
  bool are_allowed_;
  double budget_;  // share of the run's time
  double sequence_length_;
  std::vector<MeasuredCriticalBatch> critical_batches_;
  int64_t count_ = 0;
  double seconds_ = 0;
  double latest_share_ = 0;  // of the run that was done at the latest
};

}  // namespace copus
