// What `copus watch` shows of a run: the end of its logs, and the lines of text that become of it. However long a run
// is, a frame costs the same.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "copus/config/job_config.h"
#include "copus/record/step_record.h"
#include "copus/report/decision_log.h"
#include "copus/report/run_summary.h"

namespace copus {

struct WatchedRun {
  std::string name;  // its directory, as the user gave it
  TrainConfig limits;
  std::vector<StepRecord> records;    // of the last steps, as many as end_of_log_bytes hold
  std::vector<DecisionEvent> events;  // likewise
  std::optional<RunSummary> summary;  // of a run that goes on: of where it ended before
  bool is_running = false;
  double seconds_since_step = 0;  // since its log was written
};

inline constexpr uint64_t end_of_log_bytes = uint64_t{512} << 10;

// Reads the files of a run, which another process may be writing. Throws UserError where there is no run, and for a
// file that is damaged where it was read.
WatchedRun read_watched_run(const std::filesystem::path& directory);

// Draws these numbers, of which there is at least one, as a line of blocks of eight heights, from the smallest to the
// largest: one column each or, where they are more, the mean of neighbours.
std::string sparkline(const std::vector<double>& values, size_t columns);

// Makes the lines of a frame, each at most `width` columns.
std::vector<std::string> watch_lines(const WatchedRun& run, int width);

}  // namespace copus
