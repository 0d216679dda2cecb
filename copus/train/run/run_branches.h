// Trains the branches by which a run measures its critical batch (orchestrator/controller/run_calibration.h), on all
// ranks, in the run's layout and from its state. The state itself does not change; branches train a second copy.
#pragma once

#include <functional>
#include <optional>

#include "copus/config/run_config.h"
#include "copus/data/dataset.h"
#include "copus/orchestrator/controller/run_calibration.h"
#include "copus/record/step_record.h"
#include "copus/train/step/stop_request.h"
#include "copus/train/trainer/trainer.h"

namespace copus {

// Returns a calibration after the step of this record, with no branch trained yet.
RunCalibration calibration_of(const CalibrationRequest& request, const StepRecord& latest);

struct BranchesEnd {
  StopReason stopped = StopReason::none;  // why branches ended early, if they did
  RunCalibration calibration;             // the same on all ranks
};

// Trains all branches of the request. Every rank calls it between two steps, with the record of the latest one.
// `between_branches` is called before each branch. After request.most_seconds no further branch is trained; the
// complete repetitions give the result. Branches read the run's next samples without counting them as consumed, so the
// run itself reads them again afterwards. At the end the run's groups are open again. If any rank lacks memory for the
// second copy, nothing is trained and the calibration says so.
BranchesEnd train_branches(const RunConfig& config, const CalibrationRequest& request, const StepRecord& latest,
                           const Trainer& trunk, const Dataset& dataset, World& world, const StopQuestion& stop,
                           const std::function<void()>& between_branches);

}  // namespace copus
