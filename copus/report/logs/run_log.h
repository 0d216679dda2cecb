// run.jsonl: one JSON object per training step. Each line is written at once, so a killed process loses nothing that it
// had logged.
#pragma once

#include <cstdint>
#include <filesystem>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "copus/record/step_record.h"
#include "copus/report/logs/line_log.h"

namespace copus {

// Convert a step to its line of the file, without the line end, and back. Throw UserError that says what is wrong.
std::string to_line(const StepRecord& record);
StepRecord step_record_from_line(const std::string& line);

// Returns whether `record` replaces the previous line of the log, because it is the same step with its held-out loss
// added (RunLog::add_to_resumed_step).
bool completes(const StepRecord& before, const StepRecord& record);

// A run.jsonl that is longer than this is read only in part where that suffices.
inline constexpr uint64_t most_bytes_read_whole = uint64_t{16} << 20;

class RunLog {
 public:
  // Opens <run_dir>/run.jsonl. A new run starts an empty log, and throws UserError if the log already exists. A resumed
  // run keeps the lines up to and including `resume_after_step` (the step of the checkpoint) and truncates the rest:
  // later steps are trained again, and the last line may be half-written. The constructor reads neither lines after
  // that step nor lines more than LineLog::bytes_to_check before it. Throws UserError if the file cannot be opened or
  // truncated, or if a kept line that it reads is damaged, repeated or out of order.
  explicit RunLog(const std::filesystem::path& run_dir, std::optional<int64_t> resume_after_step = std::nullopt);

  // Appends a step. Throws UserError if the line cannot be written (full disk). The log then still ends with a whole
  // line.
  void append(const StepRecord& record);

  // The logged record of the step after which the run was resumed; empty in a new run and if its line is missing.
  const std::optional<StepRecord>& resumed_step() const { return resumed_step_; }
  // Appends the line of resumed_step() again, now with the held-out loss. Call this before any append(). If the log
  // holds both lines, readers use the later line. Throws UserError as append() does.
  void add_to_resumed_step(const HeldOutLoss& loss);

  // As in LineLog.
  bool is_in_place() const { return lines_.is_in_place(); }
  void put_back() { lines_.put_back(); }
  // Returns when everything appended is on the disk. Throws UserError as LineLog::sync does.
  void sync() { lines_.sync(); }
  int64_t bytes() const { return lines_.bytes(); }

  // Returns the steps before the resumed step that have no line in the part of the log that was read. Empty in a new
  // run.
  const std::vector<StepSpan>& missing() const { return missing_; }

 private:
  StepOrder kept_;
  std::optional<StepRecord> latest_kept_;
  std::optional<StepRecord> resumed_step_;
  LineLog lines_;
  std::vector<StepSpan> missing_;
};

// Reads the lines of a run.jsonl after step `after_step`, up to and including `last_step`. Ignores a last line without
// line end, because its writer is still writing or was killed. Steps may be missing. Throws UserError if there is no
// such file, or if a line is damaged, repeated or out of place (the message names the line).
std::vector<StepRecord> read_run_log(const std::filesystem::path& path,
                                     int64_t last_step = std::numeric_limits<int64_t>::max(), int64_t after_step = 0);

// Reads only the lines of these steps, which are in order. Omits steps without a line.
std::vector<StepRecord> read_steps(const std::filesystem::path& path, const std::vector<int64_t>& steps);

// Records that show the course of a run.
struct ChosenRecords {
  std::vector<StepRecord> records;
  bool is_all = false;
};

// Reads a run.jsonl. If it has at most most_bytes_read_whole, all records are read. From a longer file it reads a
// number of records that hardly depends on the length:
// - 8000 evenly spread records, and the last record,
// - up to 2000 records of evaluated steps,
// - the records of `steps`, or of the next steps that have a record.
//
// Throws UserError as read_run_log does.
ChosenRecords choose_records(const std::filesystem::path& path, const std::vector<int64_t>& steps,
                             const EvaluateConfig& evaluate);

// Returns the latest step in the lines at the end of a run.jsonl; 0 if there is no file or no line. Ignores damaged
// lines, because a resumed run removes them.
int64_t latest_logged_step(const std::filesystem::path& path);

// The steps from `after` + 1 to `until` without a record. The records are in order.
std::vector<StepSpan> missing_steps(const std::vector<StepRecord>& records, int64_t after, int64_t until);

}  // namespace copus
