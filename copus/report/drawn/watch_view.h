// Makes the view of a run in `copus watch`: reads the end of the run's logs and makes lines of text. The time for a
// frame does not grow with the run.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "copus/config/job_config.h"
#include "copus/record/step_record.h"
#include "copus/report/files/run_summary.h"
#include "copus/report/logs/decision_log.h"

namespace copus {

struct WatchedRun {
  std::string name;  // its directory, as the user gave it
  TrainConfig limits;
  std::vector<StepRecord> records;    // of the last steps, as many as fit into end_of_log_bytes
  std::vector<DecisionEvent> events;  // the last events, as many as fit into end_of_log_bytes
  std::optional<RunSummary> summary;  // empty if the run has not ended since it was last resumed
  bool is_running = false;
  double seconds_since_step = 0;  // since run.jsonl was last written
};

inline constexpr uint64_t end_of_log_bytes = uint64_t{512} << 10;

// Reads the files of a run, which another process may be writing. Throws UserError if `directory` is not a run's, or if
// a part that is read is damaged.
WatchedRun read_watched_run(const std::filesystem::path& directory);

// Draws numbers as a line of blocks of eight heights, scaled from the smallest to the largest value. Each column shows
// one number or, if there are more numbers than columns, the mean of neighbouring numbers. `values` must not be empty.
std::string sparkline(const std::vector<double>& values, size_t columns);

// Makes the lines of a frame, each at most `width` columns.
std::vector<std::string> watch_lines(const WatchedRun& run, int width);

}  // namespace copus
