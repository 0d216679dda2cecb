// Judges how well predicted step times agree with published step times. Constants are fitted on half of the sets, and
// both halves are judged.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "copus/base/numbers/quantile.h"
#include "copus/description/cluster_description.h"
#include "copus/performance/measured/prediction_range.h"
#include "copus/workshop/published/agreement.h"
#include "copus/workshop/published/runs.h"

namespace copus {

// One published run with its prediction.
struct JudgedRun {
  PublishedRun run;
  StepTimeParts parts;           // predicted, not corrected
  double predicted_seconds = 0;  // of a step, corrected with the constants of the run's group
  double measured_seconds = 0;
  int64_t nodes = 0;
  PredictionDoubt doubt;  // the fitted runs of the same group count as measurements
  bool in_range() const { return doubt.range(predicted_seconds).holds(measured_seconds); }
};

// The runs of one set, which differ only in their configuration. A layout is (d, t, p, v). Each layout is represented
// by the fastest of its measured runs.
struct JudgedSet {
  std::string name;
  std::string group;  // the group whose constants apply
  bool is_fitted = false;
  std::vector<JudgedRun> runs;
  std::vector<size_t> layouts;       // by layout: the index of the run that represents it
  double kendall_tau = 0;            // NaN with fewer than two layouts
  double top1_regret = 0;            // NaN with fewer than two layouts
  double median_absolute_error = 0;  // relative, of throughput
  double share_in_range = 0;         // fraction of the runs
  // Measured seconds / predicted seconds, without constants, of the layout whose prediction is the fastest.
  double uncorrected_slowdown = 0;
};

// Summary of the sets of one half. NaN if there are none.
struct HalfSummary {
  int64_t sets = 0;
  double mean_kendall_tau = 0;
  double mean_top1_regret = 0;
  double median_absolute_error = 0;           // of all their layouts
  double mean_absolute_error = 0;             // of all their layouts
  double median_absolute_error_all_runs = 0;  // of all their runs
  double share_in_range = 0;                  // of all their runs
};

struct PublishedAgreement {
  std::vector<JudgedSet> sets;                       // in the order of the table
  std::map<std::string, FittedConstants> constants;  // by group
  std::map<std::string, int64_t> left_out;           // number of runs, by reason
  HalfSummary held_out, fitted;
  Quartiles uncorrected_slowdown{};  // over all sets
};

// Fits the constants of every group on its first, third, ... set, and holds out the others. `find_cluster` returns the
// shipped cluster description with a given name.
PublishedAgreement judge_step_times(const std::vector<PublishedRun>& runs,
                                    const std::function<ClusterDescription(const std::string&)>& find_cluster);

}  // namespace copus
