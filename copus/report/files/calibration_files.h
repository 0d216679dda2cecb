// The files of a calibration (copus calibrate). branches.jsonl has a line for each finished branch, so that an
// interrupted calibration can be resumed. calibration.json holds the latest result and the critical batches of all
// checkpoints that have been calibrated. The setting noise_scale.calibration may name calibration.json.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "copus/config/job_config.h"
#include "copus/report/logs/line_log.h"
#include "copus/statistics/branch_calibration.h"

namespace copus {

class BranchLog {
 public:
  // Opens the log for appending. Throws UserError if it cannot be opened, if it is damaged, or if another process is
  // using it.
  explicit BranchLog(const std::filesystem::path& path);

  // Throws UserError if the line cannot be written.
  void append(const BranchOutcome& outcome);

 private:
  LineLog lines_;
};

// Reads the finished branches; none if the file does not exist. Throws UserError for a damaged line.
std::vector<BranchOutcome> read_branch_log(const std::filesystem::path& path);

struct CalibrationReport {
  int64_t step = 0;              // of the checkpoint where the branches start
  int64_t consumed_samples = 0;  // at that checkpoint
  double noise_scale = 0;        // phi at that checkpoint, in samples, with its 95 % interval
  double noise_scale_low = 0, noise_scale_high = 0;
  double reference_batch = 0;
  double learning_rate = 0;  // of the reference batch
  int64_t branches = 0;      // finished ones
  int64_t outside = 0;       // finished branches whose loss is beyond the reference batch's branches
  double alpha = 0;          // the exponent with which c was fitted
  double updates = 0;        // k of the critical batch's rule (critical_batch) with which c was fitted
  BranchCalibration fit;
  std::vector<MeasuredCriticalBatch> critical_batches;  // at this checkpoint and at earlier ones, by tokens
  std::optional<Estimate> rate_exponent;  // best e of the rate's factor (B / B_ref)^e; empty: not compared
};

std::string to_json(const CalibrationReport& report);

}  // namespace copus
